// The record of changes when a mount was lost: nobody put it to rest, and the next one begins anew.

#include "fusefs/change_log.h"

#include <gmock/gmock.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/scratch.h"

namespace okcvm::fusefs {
namespace {

class ChangeLogTest : public ::testing::Test {
 protected:
  ChangeLogTest() {
    config_.live = scratch_ / "live";
    config_.resting = scratch_ / "changes/12ab34cd";
    config_.workspace_exists = true;
  }
  std::unique_ptr<ChangeLog> open() {
    auto log = ChangeLog::open(config_);
    EXPECT_TRUE(log);
    return log ? std::move(*log) : nullptr;
  }
  static RelPath path(const char* text) { return *RelPath::parse(text); }
  static std::vector<std::string> contents_in(const ChangeSet& set) {
    std::vector<std::string> files;
    for (const auto& change : set.changes)
      if (change.kind == ChangeKind::kContent) files.emplace_back(change.path.text());
    return files;
  }

  const test::ScratchDirectory scratch_{"changes"};
  ChangeLog::Config config_;
};

TEST_F(ChangeLogTest, TellsWhatWasWrittenInALostMount) {
  const auto lost = open();
  lost->retire(lost->cut());
  lost->record(ChangeKind::kEntry, path("outputs/made"));
  lost->record(ChangeKind::kContent, path("outputs/written"));
  const auto set = open()->cut();
  EXPECT_TRUE(set.rescan);
  EXPECT_THAT(contents_in(set), ::testing::ElementsAre("outputs/written"));
}

TEST_F(ChangeLogTest, TellsNothingOfADamagedRecord) {
  open()->record(ChangeKind::kContent, path("outputs/written"));
  std::fstream(config_.live, std::ios::in | std::ios::out).seekp(256) << std::string(64, '\xff');
  EXPECT_TRUE(open()->cut().changes.empty());
  std::fstream(config_.live, std::ios::in | std::ios::out) << std::string(64, '\xff');
  const auto set = open()->cut();
  EXPECT_TRUE(set.rescan);
  EXPECT_TRUE(set.changes.empty());
}

}  // namespace
}  // namespace okcvm::fusefs
