#include "tests/snapshots/fixture.h"

namespace okcvm::test {

RelPath rel(std::string_view path) {
  auto parsed = RelPath::parse(path);
  EXPECT_TRUE(parsed) << path;
  return parsed ? *parsed : RelPath();
}

void ChangeRecord::note(ChangeKind kind, const std::string& path, const std::string& target) {
  changes_.push_back({kind, rel(path), target.empty() ? RelPath() : rel(target)});
}

void ChangeRecord::open_for_writing(const std::string& path) {
  note(ChangeKind::kContent, path);
  open_.push_back(rel(path));
}

snapshots::Store::ChangeSource ChangeRecord::source() {
  return {[this] {
            ++cuts;
            ChangeSet set;
            set.rescan = rescan_;
            set.rescan_reason = rescan_ ? "a test said so" : "";
            set.lost_at = rescan_;
            set.changes = changes_;
            set.in_flight = open_;
            set.counts_from = counts_from_;
            set.end = start_ + changes_.size();
            for (const auto& path : open_) note(ChangeKind::kContent, path.text());
            return set;
          },
          [this](const ChangeSet& set) {
            ++retired;
            const std::size_t done = set.end - start_;
            changes_.erase(changes_.begin(), changes_.begin() + static_cast<std::ptrdiff_t>(done));
            start_ = set.end;
            if (set.rescan) rescan_ = false;
          },
          {},
          [this](const std::vector<RelPath>& files) {
            still_mapped = files;
            for (const auto& file : files) note(ChangeKind::kContent, file.text());
          },
          [this](const std::string& state) { counts_from_ = state; }};
}

SnapshotTest::SnapshotTest() {
  std::filesystem::create_directories(scratch_ / "workspaces");
  std::filesystem::create_directories(scratch_ / "snapshots");
}

snapshots::Store& SnapshotTest::store() {
  if (!store_) {
    auto opened = snapshots::Store::open(config());
    if (!opened) throw std::runtime_error("Store::open: " + opened.error().message);
    store_ = std::move(*opened);
  }
  return *store_;
}

void SnapshotTest::make_zones() {
  for (const char* zone : {"uploads", "outputs", "temp"}) {
    std::filesystem::create_directories(in(zone));
    record_.note(ChangeKind::kTree, zone);
  }
}

void SnapshotTest::shell(const std::string& script) {
  const auto done = run_script(script, workspace());
  ASSERT_EQ(done.exit_code, 0) << done.output;
  for (const char* zone : {"uploads", "outputs", "temp"}) record_.note(ChangeKind::kTree, zone);
}

snapshots::Snapshot SnapshotTest::snapshot(const std::string& label) {
  auto taken = store().take(label, record_.source(), nullptr);
  if (!taken) throw std::runtime_error("take: " + taken.error().message + " " + taken.error().path);
  return *taken;
}

snapshots::Store::RestoreHooks SnapshotTest::hooks() {
  snapshots::Store::RestoreHooks hooks{nullptr, record_.source(),
                                       [this](const std::vector<RelPath>& paths) { invalidated_ = paths; }};
  if (writes_ahead_) hooks.hold = [] { return nullptr; };
  return hooks;
}

snapshots::RestoreResult SnapshotTest::restore(const snapshots::Snapshot& to,
                                               const std::vector<std::string>& paths) {
  std::vector<RelPath> scope;
  for (const auto& path : paths) scope.push_back(rel(path));
  auto restored = store().restore(to.id.text(), scope, false, hooks(), nullptr);
  if (!restored)
    throw std::runtime_error("restore: " + restored.error().message + " " + restored.error().path);
  return *restored;
}

void SnapshotTest::restore_failing_at(std::initializer_list<const char*> points,
                                      const snapshots::Snapshot& to, const std::function<void()>& look,
                                      const std::function<void()>& look_before) {
  constexpr int kMostTimes = 30;
  const Manifest before = manifest();
  for (const char* point : points)
    for (int time = 1;; ++time) {
      ASSERT_LT(time, kMostTimes) << point;
      const auto restored =
          under_fault("errno:" + std::string(point) + ":" + std::to_string(time) + ":ENOSPC",
                      [&] { return store().restore(to.id.text(), {}, false, hooks(), nullptr); });
      if (restored) {
        look();
        ASSERT_TRUE(store().undo(hooks(), nullptr));
      }
      expect_same(before, manifest());
      look_before();
      if (restored) break;
    }
}

void SnapshotTest::there_and_back(const std::string& first, const std::string& second) {
  make_zones();
  shell(first);
  const auto one = snapshot("one");
  const Manifest at_one = manifest();
  expect_exact(one);
  shell(second);
  const Manifest at_two = manifest();
  const auto restored = restore(one);
  expect_same(at_one, manifest());
  ASSERT_TRUE(restored.before);
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(at_two, manifest());
  ASSERT_TRUE(store().undo(hooks(), nullptr));
  expect_same(at_one, manifest());
  restore(*restored.before);
  expect_same(at_two, manifest());
  expect_exact(snapshot("after all"));
  expect_sound_repository();
  EXPECT_FALSE(there_is(in(".restore")));
}

void SnapshotTest::expect_same(const Manifest& expected, const Manifest& actual) {
  Manifest left = expected, right = actual;
  left.erase(".");  // the backing folder itself is no part of a session
  right.erase(".");
  EXPECT_THAT(differences(left, right), ::testing::IsEmpty());
}

void SnapshotTest::expect_exact(const snapshots::Snapshot& taken) {
  const std::string name = "fork" + std::to_string(++forks_);
  const snapshots::StoreConfig target{scratch_ / ("snapshots/" + name + ".git"),
                                      scratch_ / ("workspaces/" + name), 0, 0};
  auto forked = store().fork(taken.id.text(), target, nullptr);
  ASSERT_TRUE(forked) << forked.error().message << " " << forked.error().path;
  expect_same(manifest(), manifest_of(target.workspace));
  auto report = store().verify(taken.id.text(), record_.source(), nullptr);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_THAT(report->problems, ::testing::IsEmpty());
  EXPECT_EQ(report->live_differences.size(), 0u)
      << (report->live_differences.empty() ? "" : report->live_differences.front().path.text());
  std::filesystem::remove_all(target.workspace);
  std::filesystem::remove_all(target.repository);
}

std::string SnapshotTest::git(const std::string& arguments) {
  const auto done = run_script("git --git-dir=" + repository().string() + " " + arguments, scratch_.path());
  EXPECT_EQ(done.exit_code, 0) << arguments << "\n" << done.output;
  return done.output;
}

void SnapshotTest::expect_sound_repository() {
  const auto done = run_script("git --git-dir=" + repository().string() +
                                   " fsck --strict --full --no-dangling --no-progress --unreachable",
                               scratch_.path());
  EXPECT_EQ(done.exit_code, 0) << done.output;
  EXPECT_EQ(done.output.find("error"), std::string::npos) << done.output;
  EXPECT_EQ(done.output.find("warning"), std::string::npos) << done.output;
}

}  // namespace okcvm::test
