// What is left when something goes wrong: a full disk, a folder that cannot be had, a loss that is not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/metrics.h"
#include "report/perfetto.h"
#include "report/run_folder.h"
#include "report/summary.h"

namespace shardpipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class BrokenRun : public testing::Test {
 protected:
  BrokenRun() {
    std::string name = testing::TempDir() + "shardpipe-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  ~BrokenRun() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  fs::path folder_;
};

// While it lives, a file of this process takes that many bytes and no more: a disk that is full from there on.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(BrokenRun, EveryLineOfTheMetricsStaysValidWhenTheDiskIsFull) {
  RunFolder run(folder_ / "run", "x");
  run.append_metrics(R"({"step":1})");
  {
    const FullDisk disk(15);  // room for 4 bytes of the next line
    EXPECT_THROW(run.append_metrics(R"({"step":2})"), std::runtime_error);
  }
  EXPECT_EQ(content_of(folder_ / "run/metrics.jsonl"), "{\"step\":1}\n");
  run.append_metrics(R"({"step":3})");
  EXPECT_EQ(content_of(folder_ / "run/metrics.jsonl"), "{\"step\":1}\n{\"step\":3}\n");
}

TEST_F(BrokenRun, ARefusedFolderLeavesNothingBehind) {
  {
    const FullDisk disk(10);
    EXPECT_THROW(RunFolder(folder_ / "new/parents/run", std::string(50, 'c')), InputError);
  }
  EXPECT_THROW(RunFolder(folder_ / "another" / std::string(300, 'n'), "x"), InputError);  // a name too long
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(BrokenRun, ARefusedFolderThatWasThereStays) {
  fs::create_directories(folder_ / "mine/run");
  const FullDisk disk(10);
  EXPECT_THROW(RunFolder(folder_ / "mine/run", std::string(50, 'c')), InputError);
  EXPECT_TRUE(fs::is_directory(folder_ / "mine/run"));
  EXPECT_TRUE(fs::is_empty(folder_ / "mine/run"));
}

TEST(NotFinite, ALossIsNamedBesideItsNull) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  StepMetrics metrics;
  metrics.loss = nan;
  metrics.grad_norm = infinity;
  metrics.val_loss = -infinity;
  const Json line = Json::parse(to_json_line(metrics));
  EXPECT_TRUE(line["loss"].is_null() && line["grad_norm"].is_null() && line["val_loss"].is_null());
  EXPECT_EQ(line["loss_text"], "nan");
  EXPECT_EQ(line["grad_norm_text"], "inf");
  EXPECT_EQ(line["val_loss_text"], "-inf");

  Summary summary;
  summary.final_loss = -nan;  // the sign of a NaN means nothing
  EXPECT_EQ(Json::parse(to_json(summary))["final_loss_text"], "nan");
  EXPECT_FALSE(Json::parse(to_json(summary)).contains("val_loss_text")) << "there is none";
  EXPECT_FALSE(Json::parse(to_json_line(StepMetrics{})).contains("loss_text"));
}

// Viewers look for the slice around an arrow's end, and a slice ends before its last instant.
TEST(Arrows, EndBeforeTheReceiverEnds) {
  for (const double receiver_end : {4.0, 5.0, 6.0}) {
    std::vector<TraceSpan> spans(2);
    spans[0].name = "send";
    spans[0].begin_seconds = 0;
    spans[0].end_seconds = 10;  // its middle is the receiver's end, or beyond
    spans[0].flow_out = 1;
    spans[1].name = "receive";
    spans[1].rank = 1;
    spans[1].begin_seconds = 3;
    spans[1].end_seconds = receiver_end;
    spans[1].flow_in = 1;
    double leaves = -1, arrives = -1;
    const Json trace = Json::parse(to_chrome_trace(spans, ""));
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "s") leaves = event["ts"];
      if (event["ph"] == "f") arrives = event["ts"];
    }
    EXPECT_TRUE(0 <= leaves && leaves <= arrives) << leaves << " to " << arrives;
    EXPECT_TRUE(3e6 <= arrives && arrives < receiver_end * 1e6) << leaves << " to " << arrives;
  }
}

}  // namespace
}  // namespace shardpipe
