// The matrix products of GPT-2 training in every library at hand, one thread, as shares of the processor's measured FMA
// peak. Prints a markdown table; docs/decisions/gemm.md says what it decides. Libraries that are not there are skipped:
// they are loaded by name, each with its symbols to itself, because all of them call theirs sgemm.
//
//   build/bench/bench_gemm_libraries
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "machine_limits.h"

using namespace shardpipe;
using kernels::Transpose;

namespace {

struct Product {
  Transpose transpose_a, transpose_b;
  int64_t m, n, k;
  bool accumulate;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

using Multiply = std::function<void(const Product&, const float* a, const float* b, float* c)>;

struct Library {
  std::string name;
  Multiply multiply;
};

bool is(Transpose t) { return t == Transpose::Yes; }
int64_t lda(const Product& p) { return is(p.transpose_a) ? p.m : p.k; }
int64_t ldb(const Product& p) { return is(p.transpose_b) ? p.k : p.n; }

void* load(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Any library with the C interface of BLAS.
void add_cblas(std::vector<Library>& libraries, std::string name, void* library) {
  constexpr int row_major = 101, not_transposed = 111, transposed = 112;
  using Sgemm = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  const auto sgemm = find<Sgemm>(library, "cblas_sgemm");
  if (!sgemm) return;
  libraries.push_back({std::move(name), [=](const Product& p, const float* a, const float* b, float* c) {
                         const auto narrow = [](int64_t value) { return static_cast<int>(value); };
                         sgemm(row_major, is(p.transpose_a) ? transposed : not_transposed,
                               is(p.transpose_b) ? transposed : not_transposed, narrow(p.m), narrow(p.n), narrow(p.k),
                               1.0f, a, narrow(lda(p)), b, narrow(ldb(p)), p.accumulate ? 1.0f : 0.0f, c, narrow(p.n));
                       }});
}

std::vector<Library> libraries_here() {
  std::vector<Library> libraries;
  libraries.push_back({fmt::format("gemm.h: {}", kernels::gemm_description()),
                       [](const Product& p, const float* a, const float* b, float* c) {
                         kernels::gemm(p.transpose_a, p.transpose_b, p.m, p.n, p.k, a, lda(p), b, ldb(p), c, p.n,
                                       p.accumulate);
                       }});
  if (void* library = load({"libdnnl.so.2", "libdnnl.so"})) {
    using Sgemm = int(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float,
                      float*, int64_t);
    const auto sgemm = find<Sgemm>(library, "dnnl_sgemm");
    libraries.push_back({"oneDNN dnnl_sgemm", [=](const Product& p, const float* a, const float* b, float* c) {
                           sgemm(is(p.transpose_a) ? 'T' : 'N', is(p.transpose_b) ? 'T' : 'N', p.m, p.n, p.k, 1.0f, a,
                                 lda(p), b, ldb(p), p.accumulate ? 1.0f : 0.0f, c, p.n);
                         }});
  }
  if (void* library = load({"openblas-pthread/libopenblas.so.0",
                            "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0", "libopenblas.so.0"})) {
    if (const auto set_threads = find<void(int)>(library, "openblas_set_num_threads")) set_threads(1);
    const auto core = find<char*()>(library, "openblas_get_corename");
    add_cblas(libraries, fmt::format("OpenBLAS ({} kernels)", core ? core() : "?"), library);
  }
  if (void* library = load({"/usr/lib/x86_64-linux-gnu/blis-openmp/libblis.so.4",
                            "/usr/lib/x86_64-linux-gnu/blis-pthread/libblis.so.4", "libblis.so.4"})) {
    if (const auto set_threads = find<void(int64_t)>(library, "bli_thread_set_num_threads")) set_threads(1);
    const auto version = find<const char*()>(library, "bli_info_get_version_str");
    add_cblas(libraries, fmt::format("BLIS {}", version ? version() : "?"), library);
  }
  for (const char* plugin : {EIGEN_PORTABLE, EIGEN_NATIVE}) {
    if (void* library = load({plugin})) {
      using Sgemm = void(bool, bool, long, long, long, const float*, const float*, float*, bool);
      const auto sgemm = find<Sgemm>(library, "eigen_sgemm");
      const char* instructions = find<const char*()>(library, "eigen_instructions")();
      libraries.push_back(
          {fmt::format("Eigen ({})", instructions), [=](const Product& p, const float* a, const float* b, float* c) {
             sgemm(is(p.transpose_a), is(p.transpose_b), p.m, p.n, p.k, a, b, c, p.accumulate);
           }});
    }
  }
  return libraries;
}

// The best of several runs: what the library can do, not what other programs let it.
double seconds(const Library& library, const Product& p, const float* a, const float* b, float* c) {
  library.multiply(p, a, b, c);
  double best = 1e30;
  const double start = bench::thread_seconds();
  for (int run = 0; run < 3 || (run < 200 && bench::thread_seconds() - start < 0.03); ++run) {
    const double before = bench::thread_seconds();
    library.multiply(p, a, b, c);
    best = std::min(best, bench::thread_seconds() - before);
  }
  return best;
}

}  // namespace

int main() {
  struct Layer {
    const char* name;
    int64_t in, out;
  };
  const std::vector<Layer> layers = {{"10M qkv", 320, 960},     {"10M proj", 320, 320}, {"10M fc", 320, 1280},
                                     {"10M fcproj", 1280, 320}, {"10M head", 320, 256}, {"124M qkv", 768, 2304},
                                     {"124M proj", 768, 768},   {"124M fc", 768, 3072}, {"124M fcproj", 3072, 768}};
  const std::vector<Library> libraries = libraries_here();
  const double peak = bench::peak_flops_per_second();

  fmt::print("{}, {} vectors, measured FMA peak of one thread {:.1f} GFLOP/s\n", bench::processor_name(),
             bench::vector_instructions(), peak / 1e9);
  const char* core_type = std::getenv("OPENBLAS_CORETYPE");
  fmt::print("OPENBLAS_CORETYPE is {}\n\n", core_type ? core_type : "not set");

  std::string head = "| layer | in × out | tokens |", rule = "|---|---|---|";
  for (const Library& library : libraries) {
    head += fmt::format(" {} |", library.name);
    rule += "---|";
  }
  fmt::print("{}\n{}\n", head, rule);

  std::vector<double> flops_total(libraries.size()), seconds_total(libraries.size());
  for (const Layer& layer : layers) {
    for (const int64_t tokens : {256, 512, 1024}) {
      const Product forms[] = {{Transpose::No, Transpose::Yes, tokens, layer.out, layer.in, false},
                               {Transpose::No, Transpose::No, tokens, layer.in, layer.out, false},
                               {Transpose::Yes, Transpose::No, layer.out, layer.in, tokens, true}};
      const auto buffer = [](int64_t count) { return std::vector<float>(static_cast<size_t>(count), 0.25f); };
      std::string row = fmt::format("| {} | {} × {} | {} |", layer.name, layer.in, layer.out, tokens);
      for (size_t i = 0; i < libraries.size(); ++i) {
        std::string shares;
        for (const Product& form : forms) {
          const std::vector<float> a = buffer(form.m * form.k), b = buffer(form.k * form.n);
          std::vector<float> c = buffer(form.m * form.n);
          const double took = seconds(libraries[i], form, a.data(), b.data(), c.data());
          flops_total[i] += form.flops();
          seconds_total[i] += took;
          shares += fmt::format("{}{:.0f}", shares.empty() ? "" : " / ", 100 * form.flops() / took / peak);
        }
        row += fmt::format(" {} |", shares);
      }
      fmt::print("{}\n", row);
      std::fflush(stdout);
    }
  }
  std::string total = "| all of it | | |";
  for (size_t i = 0; i < libraries.size(); ++i) {
    total += fmt::format(" {:.0f} |", 100 * flops_total[i] / seconds_total[i] / peak);
  }
  fmt::print("{}\n\nEach cell: percent of the peak in forward / gradient of input / gradient of weight (added to).\n",
             total);
}
