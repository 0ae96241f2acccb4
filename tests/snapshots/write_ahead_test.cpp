// Restores that write what comes in before programs have to wait for them.

#include "tests/snapshots/fixture.h"

namespace okcvm::test {
namespace {

using ::testing::Contains;

class WriteAhead : public SnapshotTest {
 protected:
  WriteAhead() { writes_ahead_ = true; }
};

constexpr const char* kMany =
    "mkdir -p outputs/d/deep; for i in $(seq 40); do echo $i > outputs/d/$i; echo same > outputs/d/deep/$i; "
    "done;"
    "ln outputs/d/1 uploads/one; ln outputs/d/1 outputs/d/deep/also; truncate -s 300K outputs/holes; : > "
    "outputs/empty;"
    "head -c 200000 /dev/urandom > outputs/d/large; chmod 640 outputs/d/2; chmod 4711 outputs/d/3; chown 7:8 "
    "outputs/d/4;"
    "setfattr -n user.a -v b outputs/d/5; touch -d 2001-02-03 outputs/d/6; ln -s 6 outputs/d/link";

TEST_F(WriteAhead, RestoresAreExact) {
  there_and_back(kMany,
                 "rm -r outputs/d/deep; echo x > outputs/d/1; rm outputs/holes outputs/d/2 uploads/one;"
                 "mv outputs/d outputs/e; ln outputs/e/7 outputs/seven");
}

TEST_F(WriteAhead, AFailureLeavesNothingHalf) {
  make_zones();
  shell(
      "for i in 1 2 3; do echo $i > outputs/$i; done; ln outputs/1 outputs/one; truncate -s 9000 "
      "outputs/holes");
  const auto full = snapshot("full");
  const Manifest at_full = manifest();
  shell("rm outputs/*; echo 4 > outputs/4");
  snapshot("other");
  restore_failing_at(
      {"restore.create", "restore.write", "restore.attributes", "restore.rename"}, full,
      [&] { expect_same(at_full, manifest()); }, [] {});
}

TEST_F(WriteAhead, ProgramsWaitForRenamesOnly) {
  make_zones();
  shell(kMany);
  const auto full = snapshot("full");
  const Manifest at_full = manifest();
  shell("rm -r outputs/* uploads/*");
  auto with_hold = hooks();
  with_hold.hold = [&]() -> std::shared_ptr<void> {
    std::vector<std::string> contents;
    for (const auto& name : list(in(".restore"))) contents.push_back(read(in(".restore") / name));
    EXPECT_THAT(contents, Contains("same\n").Times(40));
    EXPECT_THAT(contents, Contains("1\n").Times(1)) << "of three names";
    EXPECT_THAT(contents, Contains(std::string(300 << 10, '\0')));
    // What is there meanwhile, and is not what was looked at:
    shell("mkdir -p outputs/d; echo 2 > outputs/d/2; echo y > outputs/y; touch -d 2001-02-03 uploads");
    return nullptr;
  };
  const auto restored = store().restore(full.id.text(), {}, false, with_hold, nullptr);
  ASSERT_TRUE(restored) << restored.error().message;
  expect_same(at_full, manifest());
  EXPECT_EQ(git("show " + restored->before->id.text() + ":workspace/outputs/y"), "y\n");
  EXPECT_FALSE(there_is(in(".restore")));
}

TEST_F(WriteAhead, LittleIsNotWrittenAhead) {
  writes_ahead_ = false;
  make_zones();
  shell("echo 1 > outputs/1");
  const auto one = snapshot("one");
  shell("rm outputs/1");
  auto with_hold = hooks();
  bool is_ahead = true;
  with_hold.hold = [&]() -> std::shared_ptr<void> {
    is_ahead = there_is(in(".restore"));
    return nullptr;
  };
  ASSERT_TRUE(store().restore(one.id.text(), {}, false, with_hold, nullptr));
  EXPECT_FALSE(is_ahead);
}

}  // namespace
}  // namespace okcvm::test
