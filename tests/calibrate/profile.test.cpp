#include "calibrate/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace shardpipe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Profile some_profile() {
  Profile profile{.processor = "Some \"9000\" CPU", .library = "a library 1.2", .cores = 2, .memory_bytes = 1 << 30};
  Device& device = profile.device;
  device.peak_flops_fp32 = 1.0e11 / 3;
  device.peak_flops = 2.5e11;
  device.products_fp32 = {{1e6, 0.1}, {1e9, 1}};
  device.products = {{1e6, 0.2}, {1e8, 0.7}, {1e9, 1}};
  device.memory_bytes_per_second = 7e9;
  device.update.seconds_per_byte = 1e-10;
  device.host.seconds_per_byte = 3e-10;
  device.link = {1e-5, 1.5e-10};
  device.collective = {2e-5, 2.5e-10};
  return profile;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string refusal_of(const std::string& text) {
  try {
    profile_of_json(text, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Profile, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  const std::string text = to_json(some_profile());
  write_profile(some_profile(), folder.path() / "p.json");
  const Profile read = read_profile(folder.path() / "p.json");
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.processor, "Some \"9000\" CPU");
  EXPECT_EQ(read.device.peak_flops_fp32, 1.0e11 / 3);
  EXPECT_EQ(read.device.products, some_profile().device.products);
  EXPECT_EQ(read.device.products_fp32, some_profile().device.products_fp32);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "p.json.tmp"));
}

TEST(Profile, NamesFileKeyFoundAndAllowed) {
  const std::string good = to_json(some_profile());
  const auto all = [](const char* key, const char* found) {
    return AllOf(HasSubstr("p.json"), HasSubstr(key), HasSubstr(found), HasSubstr("allowed:"));
  };
  EXPECT_EQ(refusal_of(good), "accepted");
  EXPECT_THAT(refusal_of(replaced(good, "\"cores\": 2", "\"kernels\": 2")), all("cores", "found none"));
  EXPECT_THAT(refusal_of(replaced(good, "\"cores\": 2", "\"cores\": \"2\"")), all("cores", "found \"2\""));
  EXPECT_THAT(refusal_of(replaced(good, "\"cores\": 2", "\"cores\": -2")), all("cores", "found -2"));
  EXPECT_THAT(refusal_of(replaced(good, "\"cores\": 2", "\"cores\": null")), all("cores", "found null"));
  EXPECT_THAT(refusal_of(replaced(good, "7000000000.0", "1e300")), all("memory_bytes_per_second", "found 1e+300"));
  EXPECT_THAT(refusal_of(replaced(good, "7000000000.0", "0")), all("memory_bytes_per_second", "found 0"));
  EXPECT_THAT(refusal_of(replaced(good, "version\": 1", "version\": 2")), all("shardpipe_profile_version", "found 2"));
  EXPECT_THAT(refusal_of(replaced(good, "\"share_of_peak\": 0.1", "\"share_of_peak\": 1.5")),
              all("products_fp32[0].share_of_peak", "found 1.5"));
  EXPECT_THAT(refusal_of(replaced(good, "\"flops\": 1000000000.0", "\"flops\": 1000000.0")),
              all("products_fp32[1].flops", "after"));
}

TEST(Profile, RefusesEveryTruncation) {
  const std::string good = to_json(some_profile());
  for (size_t length = 0; length + 2 < good.size(); ++length)
    ASSERT_THAT(refusal_of(good.substr(0, length)), HasSubstr("p.json: found no whole JSON object")) << length;
}

TEST(Profile, SaysWhatToDoWhereThereIsNone) {
  const TemporaryFolder folder;
  try {
    read_profile(folder.path() / "none.json");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("run with --calibrate"));
  }
  EXPECT_THROW(write_profile(some_profile(), folder.path() / "missing" / "p.json"), InputError);
  EXPECT_THROW(check_can_write_profile(folder.path() / "missing" / "p.json"), InputError);
  EXPECT_THROW(check_can_write_profile(folder.path()), InputError);
  check_can_write_profile(folder.path() / "p.json");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// What is robust on a machine that others use too: figures are there, in order, and a profile of them is accepted.
TEST(Measure, GivesAProfileThatCanBeReadBack) {
  const Profile measured = measure_profile(0);
  const std::string text = to_json(measured);
  EXPECT_EQ(to_json(profile_of_json(text, "measured")), text);
  EXPECT_GT(measured.device.peak_flops_fp32, 0);
  EXPECT_EQ(measured.device.products.size(), measured.device.products_fp32.size());
}

}  // namespace
}  // namespace shardpipe
