#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "snapshots/stat_index.h"
#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using namespace snapshots;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(SnapshotTest, OpeningAStoreMakesNothingOnDisk) {
  EXPECT_THAT(*store().list(0), IsEmpty());
  EXPECT_FALSE(there_is(repository()));
  EXPECT_FALSE(there_is(workspace()));
}

TEST_F(SnapshotTest, HoldsEverythingThatIsInTheZones) {
  make_zones();
  shell(R"(
    mkdir -p outputs/deep/er/est outputs/empty uploads/a
    echo report > outputs/report.md; printf '' > outputs/nothing
    ln -s report.md outputs/link; ln -s gone outputs/dangling
    chmod 4751 outputs/report.md; chmod 0100 outputs/deep/er
    setfattr -n user.origin -v 'https://example.org/ ü' outputs/report.md || true
    touch -d '2001-02-03 04:05:06.789012345 UTC' outputs/report.md outputs/empty
    touch -h -d '1999-01-01 00:00:00.5 UTC' outputs/link
    chown 1234:4321 outputs/deep/er/est
    head -c 300000 /dev/urandom > uploads/a/random
  )");
  const auto taken = snapshot("first");
  EXPECT_EQ(taken.label, "first");
  EXPECT_EQ(taken.stats.files, 5u);
  EXPECT_EQ(taken.stats.directories, 8u);
  EXPECT_EQ(taken.stats.bytes, 300007u);
  EXPECT_FALSE(taken.parent);
  expect_exact(taken);
  expect_sound_repository();
  EXPECT_EQ(git("show " + taken.id.text() + ":workspace/outputs/report.md"), "report\n");
}

TEST_F(SnapshotTest, AnswersTheNewestWhenNothingChanged) {
  make_zones();
  shell("echo 1 > outputs/a");
  const auto first = snapshot();
  EXPECT_EQ(snapshot().id.text(), first.id.text());
  EXPECT_NE(snapshot("with a label").id.text(), first.id.text());
  record_.note(ChangeKind::kContent, "outputs/a");  // opened for writing, and nothing written
  EXPECT_EQ(store().list(0)->size(), 2u);
}

TEST_F(SnapshotTest, ReadsOnlyWhatChanged) {
  make_zones();
  shell("for d in 1 2 3; do mkdir outputs/$d; for i in $(seq 50); do echo $d $i > outputs/$d/$i; done; done");
  const auto first = snapshot();
  EXPECT_EQ(first.stats.files, 150u);
  write(in("outputs/2/7"), "new");
  record_.note(ChangeKind::kContent, "outputs/2/7");
  const auto second = snapshot();
  EXPECT_EQ(second.stats.changed, 1u);
  EXPECT_EQ(second.stats.bytes_read, 3u);
  EXPECT_EQ(second.stats.files, 150u);
  EXPECT_EQ(second.parent, first.id);
  expect_exact(second);
}

TEST_F(SnapshotTest, ARenamedFolderIsNotReadAgain) {
  make_zones();
  shell("mkdir -p outputs/old/in; for i in $(seq 200); do echo $i > outputs/old/in/$i; done");
  snapshot();
  move("outputs/old", "uploads/new");
  write(in("uploads/new/in/5"), "changed after the move");
  record_.note(ChangeKind::kContent, "uploads/new/in/5");
  const auto taken = snapshot();
  EXPECT_LE(taken.stats.changed, 4u);
  EXPECT_EQ(taken.stats.bytes_read, 22u);
  expect_exact(taken);
}

/// None could be read that holds them.
TEST_F(SnapshotTest, IsNotTakenOfPathsThatBecameTooLongByAMove) {
  make_zones();
  std::string below = "uploads/a", deep = "outputs";
  for (int i = 0; i < 15; ++i) below += "/" + std::string(200, 'a');
  for (int i = 0; i < 8; ++i) deep += "/" + std::string(200, 'b');
  std::filesystem::create_directories(in(below));
  std::filesystem::create_directories(in(deep));
  write(in(below + "/file"), "x");
  std::filesystem::create_hard_link(in(below + "/file"), in(below + "/link"));
  snapshot();
  move("uploads/a", deep + "/a");
  const auto refused = store().take("", record_.source(), nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, ENAMETOOLONG);
  move(deep + "/a", "uploads/again");
  expect_exact(snapshot());
}

TEST_F(SnapshotTest, VerifyNeedsNone) {
  make_zones();
  EXPECT_FALSE(store().take("given up", record_.source(),
                            [](std::string_view, std::uint64_t, std::uint64_t) { return false; }));
  const auto report = store().verify("", record_.source(), nullptr);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->snapshot);
  EXPECT_THAT(report->problems, IsEmpty());
}

TEST_F(SnapshotTest, TheIndexForgetsWhatWasMovedAsideAndRemoved) {
  make_zones();
  shell(
      "mkdir outputs/build outputs/kept; echo x > outputs/build/f; echo y > outputs/kept/f; echo z > "
      "outputs/g");
  snapshot();
  move("outputs/build", "outputs/old");
  std::filesystem::remove_all(in("outputs/old"));
  record_.note(ChangeKind::kTree, "outputs/old");
  move("outputs/kept", "outputs/build");  // it takes the place of what is gone
  move("outputs/g", "outputs/h");
  const auto taken = snapshot();
  const auto folder = open_file(repository() / "okcvm", O_RDONLY | O_DIRECTORY);
  snapshots::StatIndex index(folder.get());
  index.set_base(*snapshots::Oid::parse(taken.id.text()));
  for (const auto& [path, is_known] :
       {std::pair("outputs/build/f", true), std::pair("outputs/h", true), std::pair("outputs/old/f", false),
        std::pair("outputs/kept/f", false), std::pair("outputs/g", false)})
    EXPECT_EQ(index.file(path).has_value(), is_known) << path;
  EXPECT_EQ(index.file("outputs/build/f")->inode, stat_of(in("outputs/build/f")).st_ino);
  move("outputs/build", "outputs/away");
  std::filesystem::remove_all(in("outputs/away"));
  record_.note(ChangeKind::kTree, "outputs/away");
  index.set_base(*snapshots::Oid::parse(snapshot().id.text()));
  EXPECT_FALSE(index.file("outputs/build/f"));
  EXPECT_FALSE(index.folder("outputs/build"));
}

TEST_F(SnapshotTest, ARenameThatWasRecordedButRefusedIsNotBelieved) {
  make_zones();
  shell("mkdir -p outputs/a outputs/b; echo a > outputs/a/x; echo b > outputs/b/x; echo b > outputs/b/y");
  snapshot();
  record_.note(ChangeKind::kMoved, "outputs/a", "outputs/b");  // ENOTEMPTY
  expect_exact(snapshot("tried"));
  record_.note(ChangeKind::kMoved, "outputs/a", "outputs/c");
  record_.note(ChangeKind::kContent, "outputs/a/x");
  write(in("outputs/a/x"), "another");
  move("outputs/a", "outputs/c");
  expect_exact(snapshot("tried twice"));
}

TEST_F(SnapshotTest, EventsOfAFailedSnapshotComeAgainHarmlessly) {
  make_zones();
  shell("mkdir -p outputs/a; for i in 1 2 3; do echo $i > outputs/a/$i; done");
  snapshot();
  move("outputs/a", "outputs/b");
  auto source = record_.source();
  source.retire = [](const ChangeSet&) {};  // the daemon dies before the record hears of it
  ASSERT_TRUE(store().take("kept", source, nullptr));
  reopen();
  std::filesystem::create_directory(in("outputs/a"));
  write(in("outputs/a/other"), "x");
  record_.note(ChangeKind::kTree, "outputs/a");
  expect_exact(snapshot("after"));
}

TEST_F(SnapshotTest, AGapInTheRecordIsClosedByComparing) {
  make_zones();
  shell("mkdir outputs/d; for i in $(seq 30); do echo $i > outputs/d/$i; done");
  snapshot();
  usleep(50'000);  // past the tick within which a time stamp cannot tell two changes apart
  record_.lose_track();
  snapshot("now everything is in the index");
  run_script("echo more >> outputs/d/3; rm outputs/d/4; mkdir outputs/e; mv outputs/d/5 outputs/e/five",
             workspace());
  record_.lose_track();
  const auto taken = snapshot();
  EXPECT_TRUE(taken.stats.rescanned);
  EXPECT_LT(taken.stats.bytes_read, 20u);
  expect_exact(taken);
}

TEST_F(SnapshotTest, SocketsFifosAndDevicesAreListedAsLeftOut) {
  make_zones();
  shell("mkdir outputs/d; mkfifo outputs/d/pipe; mknod outputs/null c 1 3; echo x > outputs/d/x");
  const auto taken = snapshot();
  EXPECT_THAT(taken.left_out, ElementsAre(rel("outputs/d/pipe"), rel("outputs/null")));
  EXPECT_THAT(store().find(taken.id.text())->left_out,
              ElementsAre(rel("outputs/d/pipe"), rel("outputs/null")));
  std::filesystem::remove(in("outputs/null"));
  record_.note(ChangeKind::kEntry, "outputs/null");
  move("outputs/d", "outputs/e");
  EXPECT_THAT(snapshot().left_out, ElementsAre(rel("outputs/e/pipe")));
}

TEST_F(SnapshotTest, AFileOpenForWritingIsNamedAndStaysDirty) {
  make_zones();
  shell("echo 1 > outputs/log");
  record_.open_for_writing("outputs/log");
  auto file = open_file(in("outputs/log"), O_WRONLY | O_APPEND);
  const auto first = snapshot();
  EXPECT_THAT(first.in_flight, ElementsAre(rel("outputs/log")));
  write_all(file, "2\n");
  const auto second = snapshot();
  EXPECT_NE(second.id.text(), first.id.text());
  EXPECT_EQ(git("show " + second.id.text() + ":workspace/outputs/log"), "1\n2\n");
  file = {};
  record_.nothing_is_open();
  for (const char* round : {"what the record still has", "nothing"}) {
    const auto same = snapshot();
    EXPECT_TRUE(same.unchanged);
    EXPECT_EQ(same.id.text(), second.id.text());
    EXPECT_THAT(same.in_flight, IsEmpty()) << "it is closed by now; changed: " << round;
  }
}

/// The kernel tells of the last close a moment after it.
TEST_F(SnapshotTest, AFileThatWasClosedIsNotSaidToBeWrittenTo) {
  make_zones();
  shell("echo 1 > outputs/log");
  record_.open_for_writing("outputs/log");
  EXPECT_THAT(snapshot().in_flight, IsEmpty());
  shell("echo 2 >> outputs/log");
  EXPECT_EQ(git("show " + snapshot().id.text() + ":workspace/outputs/log"), "1\n2\n");
}

/// A file that is written to through a mapping alone, with no descriptor left.
class MappedFile final {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const auto file = open_file(path, O_RDWR);
    bytes_ = static_cast<char*>(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    if (bytes_ == MAP_FAILED) throw std::runtime_error("mmap");
  }
  ~MappedFile() { ::munmap(bytes_, kSize); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  void store(std::string_view text) { text.copy(bytes_, kSize); }

 private:
  static constexpr std::size_t kSize = 8192;
  char* bytes_ = nullptr;
};

TEST_F(SnapshotTest, AMappingWhoseDescriptorIsClosedIsFound) {
  make_zones();
  shell("head -c 8192 /dev/zero > outputs/map");
  {
    MappedFile map(in("outputs/map"));
    map.store("first");
    snapshot();
    EXPECT_THAT(record_.still_mapped, ElementsAre(rel("outputs/map")));
    map.store("later");
    EXPECT_EQ(git("show " + snapshot().id.text() + ":workspace/outputs/map").substr(0, 5), "later");
  }
  record_.still_mapped.clear();
  snapshot();
  EXPECT_THAT(record_.still_mapped, IsEmpty());
}

TEST_F(SnapshotTest, AMappingThatEndsWhileItsFileIsReadIsFound) {
  make_zones();
  shell("head -c 16M /dev/zero > outputs/map");
  auto map = std::make_unique<MappedFile>(in("outputs/map"));
  map->store("first");
  int calls = 0;
  const auto taken = store().take("", record_.source(), [&](auto...) {
    if (++calls == 4) {  // by then the page was read; it is dirty already, so no time changes
      map->store("later");
      map.reset();
    }
    return true;
  });
  ASSERT_TRUE(taken);
  EXPECT_EQ(git("show " + taken->id.text() + ":workspace/outputs/map").substr(0, 5), "first");
  EXPECT_THAT(taken->in_flight, ElementsAre(rel("outputs/map")));
  EXPECT_EQ(git("show " + snapshot().id.text() + ":workspace/outputs/map").substr(0, 5), "later");
}

TEST_F(SnapshotTest, AMappingIsNotedBeforeTheCutThatTellsWhetherItsNameChanged) {
  make_zones();
  shell("head -c 8192 /dev/zero > outputs/map");
  MappedFile map(in("outputs/map"));
  map.store("first");
  auto source = record_.source();
  std::vector<std::string> steps;
  source.cut = [&steps, cut = source.cut] {
    steps.emplace_back("cut");
    return cut();
  };
  source.still_mapped = [&steps, still_mapped = source.still_mapped](const std::vector<RelPath>& files) {
    steps.emplace_back("mapped");
    still_mapped(files);
  };
  ASSERT_TRUE(store().take("", source, nullptr));
  EXPECT_THAT(steps, ElementsAre("cut", "mapped", "cut"));
}

TEST_F(SnapshotTest, AMappingThatWasMadeWhileNothingWasRecordedIsFound) {
  make_zones();
  shell("head -c 8192 /dev/zero > outputs/map");
  snapshot();
  usleep(50'000);  // past the tick within which a time stamp cannot tell two changes apart
  record_.lose_track();
  snapshot("now it is in the index");
  MappedFile map(in("outputs/map"));
  record_.lose_track();
  EXPECT_THAT(snapshot("others").in_flight, ElementsAre(rel("outputs/map")));
  map.store("later");
  EXPECT_EQ(git("show " + snapshot().id.text() + ":workspace/outputs/map").substr(0, 5), "later");
}

TEST_F(SnapshotTest, AMappingIsNotForgottenByAComparisonOfEverything) {
  make_zones();
  shell("head -c 8192 /dev/zero > outputs/map");
  MappedFile map(in("outputs/map"));
  map.store("first");
  snapshot();
  map.store("later");  // to a page that is dirty already: no time changes
  record_.lose_track();
  const auto taken = snapshot();
  EXPECT_TRUE(taken.stats.rescanned);
  EXPECT_EQ(git("show " + taken.id.text() + ":workspace/outputs/map").substr(0, 5), "later");
  EXPECT_THAT(record_.still_mapped, ElementsAre(rel("outputs/map")));
}

TEST_F(SnapshotTest, AMappingIsNotForgottenByARestoreThatFails) {
  make_zones();
  shell("head -c 8192 /dev/zero > outputs/map; echo 1 > outputs/other");
  const auto one = snapshot("one");
  shell("echo 2 > outputs/other");
  MappedFile map(in("outputs/map"));
  map.store("first");
  const auto restored = under_fault("errno:restore.rename:1:ENOSPC", [&] {
    return store().restore(one.id.text(), {rel("outputs/other")}, false, hooks(), nullptr);
  });
  ASSERT_FALSE(restored);
  map.store("later");
  EXPECT_EQ(git("show " + snapshot().id.text() + ":workspace/outputs/map").substr(0, 5), "later");
}

TEST_F(SnapshotTest, AnUnreadableFileFailsTheSnapshotByName) {
  make_zones();
  shell("mkdir outputs/d; echo 1 > outputs/d/bad");
  auto taken =
      under_fault("errno:capture.read:1:EIO", [&] { return store().take("x", record_.source(), nullptr); });
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().path, "outputs/d/bad");
  EXPECT_THAT(*store().list(0), IsEmpty());
  expect_exact(snapshot("the record was not retired"));
}

TEST_F(SnapshotTest, AFolderThatCannotBeLookedAtIsNotBelievedEither) {
  make_zones();
  shell("mkdir -p outputs/a outputs/b; echo a > outputs/a/x; echo b > outputs/b/x; echo b > outputs/b/y");
  snapshot();
  record_.note(ChangeKind::kMoved, "outputs/a", "outputs/b");  // ENOTEMPTY
  auto taken = under_fault("errno:capture.folder:0:ENOMEM",
                           [&] { return store().take("x", record_.source(), nullptr); });
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().errno_value, ENOMEM);
  EXPECT_EQ(taken.error().path, "outputs/b");
  EXPECT_EQ(store().list(0)->size(), 1u);
  expect_exact(snapshot("the record was not retired"));
}

TEST_F(SnapshotTest, IdsAreFullOrUniquePrefixes) {
  make_zones();
  shell("echo 1 > outputs/a");
  const auto first = snapshot("one");
  const std::string id = first.id.text();
  EXPECT_EQ(store().find(id)->label, "one");
  EXPECT_EQ(store().find(id.substr(0, 4))->id, first.id);
  for (const std::string& wrong :
       std::vector<std::string>{"", id.substr(0, 3), "HEAD", "main", "../x", std::string(40, '0'), id + "0",
                                "ABCDEF12", std::string("abc\0d", 5), std::string(100000, 'a')}) {
    auto found = store().find(wrong);
    ASSERT_FALSE(found) << wrong.substr(0, 50);
    EXPECT_EQ(found.error().code, Code::kUnknownSnapshot);
  }
  std::vector<std::string> ids{id};
  while (ids.size() < 700) ids.push_back(snapshot("n" + std::to_string(ids.size())).id.text());
  std::sort(ids.begin(), ids.end());
  for (std::size_t i = 1; i < ids.size(); ++i) {
    if (ids[i].substr(0, 4) != ids[i - 1].substr(0, 4)) continue;
    EXPECT_EQ(store().find(ids[i].substr(0, 4)).error().code, Code::kAmbiguousPrefix);
    break;
  }
  EXPECT_EQ(store().list(0)->size(), 700u);
  EXPECT_EQ(store().list(3)->size(), 3u);
}

TEST_F(SnapshotTest, LabelsAreKeptExactly) {
  make_zones();
  shell("echo 1 > outputs/a");
  std::string many_lines = "\"first\"\n\n'second'\n";
  while (many_lines.size() < 64 << 10) many_lines += "\"line\"\t" + std::to_string(many_lines.size()) + "\n";
  const std::vector<std::string> labels{"plain",
                                        many_lines,
                                        "\"quoted\" 'and' $(more)",
                                        "\n\nlines\n\nafter\n",
                                        std::string("nul\0inside", 10),
                                        "\xff\xfe not utf-8",
                                        std::string(64 << 10, 'x'),
                                        " ",
                                        "#comment\n",
                                        "tree 123\nparent 4"};
  for (const auto& label : labels) {
    const auto taken = snapshot(label);
    EXPECT_EQ(taken.label, label);
    reopen();
    EXPECT_EQ(store().find(taken.id.text())->label, label);
  }
  expect_sound_repository();
  EXPECT_NE(git("log -p").find("line"), std::string::npos);
}

TEST_F(SnapshotTest, AFolderIsNotTakenForTheOneThatHadItsName) {
  make_zones();
  shell("mkdir outputs/a; for i in 1 2 3; do echo first $i > outputs/a/$i; done");
  snapshot();
  record_.note(ChangeKind::kMoved, "outputs/a", "outputs/b");
  std::filesystem::rename(in("outputs/a"), in("outputs/b"));
  record_.note(ChangeKind::kTree, "outputs/a");
  run_script("mkdir outputs/a; for i in 1 2 3; do echo other $i > outputs/a/$i; done", workspace());
  expect_exact(snapshot());
  record_.note(ChangeKind::kMoved, "outputs/a", "outputs/c");
  std::filesystem::rename(in("outputs/a"), in("outputs/c"));
  record_.note(ChangeKind::kMoved, "outputs/b", "outputs/c");  // refused: ENOTEMPTY
  expect_exact(snapshot());
}

TEST_F(SnapshotTest, OfTwoAtOnceOneWaits) {
  make_zones();
  shell("for i in $(seq 50); do echo $i > outputs/$i; done");
  snapshot();                          // or there is no repository yet that both could lock
  auto other = Store::open(config());  // as another process would
  ASSERT_TRUE(other);
  for (Store* second_store : {&store(), other->get()}) {
    record_.lose_track();
    auto recorded = record_.source();
    std::atomic<bool> first_is_done = false;
    std::future<Result<Snapshot>> second;
    const Store::ChangeSource later{[&] {
                                      EXPECT_TRUE(first_is_done);
                                      return ChangeSet{true, "test", {}, {}, 0};
                                    },
                                    nullptr};
    const Store::ChangeSource source{[&] {
                                       if (!second.valid())
                                         second = std::async(std::launch::async, [&] {
                                           return second_store->take("two", later, nullptr);
                                         });
                                       return recorded.cut();
                                     },
                                     [&](const ChangeSet& set) {
                                       recorded.retire(set);
                                       first_is_done = true;
                                     }};
    const auto first = store().take("one", source, nullptr);
    ASSERT_TRUE(first);
    const auto taken = second.get();
    ASSERT_TRUE(taken) << taken.error().message;
    EXPECT_EQ(taken->parent, first->id);
  }
  expect_sound_repository();
}

TEST_F(SnapshotTest, AWorkspaceThatDoesNotExistIsAnEmptySnapshot) {
  const auto empty = snapshot("before anything");
  EXPECT_EQ(empty.stats.files, 0u);
  EXPECT_FALSE(there_is(workspace()));
  expect_sound_repository();
}

TEST_F(SnapshotTest, IsNotTakenOfAZoneThatSomebodyReplaced) {
  make_zones();
  shell("echo x > outputs/file");
  snapshot("before");
  const auto before = manifest();
  std::filesystem::rename(in("outputs"), in("aside"));
  const std::function<void()> replacements[] = {
      [&] { ASSERT_OK(::mkfifo(in("outputs").c_str(), 0600)); },
      [&] { write(in("outputs"), "a file"); },
      [&] { std::filesystem::create_symlink("aside", in("outputs")); },
  };
  for (const auto& replace : replacements) {
    replace();
    record_.lose_track();
    const auto taken = store().take("", record_.source(), nullptr);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, Code::kCorrupt);
    EXPECT_EQ(taken.error().path, "outputs");
    std::filesystem::remove(in("outputs"));
  }
  std::filesystem::rename(in("aside"), in("outputs"));
  expect_exact(snapshot("after"));
}

}  // namespace
}  // namespace okcvm::test
