// What the control socket does with files by their paths.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>

#include "tests/support/mounted_session.h"

namespace okcvm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FilesByPath : public MountedSession {
 protected:
  static constexpr int kDepth = 5'000;

  /// One directory in another, a file beside each.
  static void make_chain(const std::filesystem::path& top) {
    ASSERT_OK(::mkdir(top.c_str(), 0755));
    FileDescriptor at(::open(top.c_str(), O_RDONLY | O_DIRECTORY));
    for (int i = 1; i < kDepth; ++i) {
      ASSERT_TRUE(FileDescriptor(::openat(at.get(), "f", O_CREAT | O_WRONLY, 0644)));
      ASSERT_OK(::mkdirat(at.get(), "d", 0755));
      at = FileDescriptor(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY));
    }
  }

  /// Runs `work` where there is little room for recursion.
  static void with_small_stack(std::function<void()> work) {
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, 512 * 1024);
    pthread_t thread{};
    const auto run = [](void* argument) -> void* {
      (*static_cast<std::function<void()>*>(argument))();
      return nullptr;
    };
    ASSERT_EQ(::pthread_create(&thread, &attributes, run, &work), 0);
    ::pthread_join(thread, nullptr);
    ::pthread_attr_destroy(&attributes);
  }

  static std::vector<std::string> names_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      names.push_back(entry.path().filename());
    return names;
  }
  static RelPath path(const char* text) { return *RelPath::parse(text); }
};

TEST_F(FilesByPath, MayBeInTreesOfAnyDepth) {
  make_chain(temp() / "d");
  make_chain(outputs() / "d");
  auto& files = session().files();
  with_small_stack([&] {
    const auto info = value_of(files.info());
    EXPECT_EQ(info.directories, 2u * kDepth);
    EXPECT_EQ(info.files, 2u * (kDepth - 1));
    value_of(files.empty_zone(Zone::kTemp));
    value_of(files.remove({}, path("outputs/d"), true));
  });
  EXPECT_THAT(names_in(temp()), ElementsAre());
  EXPECT_THAT(names_in(outputs()), ElementsAre());
}

TEST_F(FilesByPath, AreRemovedNoFurtherWhenThatIsToEnd) {
  make_chain(outputs() / "d");
  auto& files = session().files();
  int steps = 0;
  const auto ended = files.remove({}, path("outputs/d"), true, nullptr, [&] { return ++steps < 10; });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Code::kBusy);
  EXPECT_EQ(steps, 10);
  EXPECT_TRUE(there_is(outputs() / "d"));
  EXPECT_FALSE(files.empty_zone(Zone::kOutputs, [] { return false; }));
  EXPECT_TRUE(there_is(outputs() / "d"));
  value_of(files.remove({}, path("outputs/d"), true));
}

TEST_F(FilesByPath, AreNotRemovedFromADirectoryThatTheCallerMayNotRead) {
  const std::string make =
      "mkdir -p d/top/kept d/top/empty; touch d/top/kept/1; chmod 777 d d/top; "
      "chmod 733 d/top/kept d/top/empty; chown 2001:2001 d d/top";
  ASSERT_EQ(run_script(make, outputs()).exit_code, 0);
  const Caller caller{2001, 2001, {}};
  auto& files = session().files();
  value_of(files.remove(caller, path("outputs/d/top/empty"), true));
  EXPECT_FALSE(there_is(outputs() / "d/top/empty"));
  for (const char* removed : {"outputs/d/top/kept", "outputs/d/top"}) {
    const auto refused = files.remove(caller, path(removed), true);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().errno_value, EACCES);
    EXPECT_EQ(refused.error().code, Code::kForbidden);
    EXPECT_EQ(refused.error().path, "outputs/d/top/kept");
  }
  EXPECT_TRUE(there_is(outputs() / "d/top/kept/1"));
}

TEST_F(FilesByPath, AreRemovedThoughProgramsRemoveThemMeanwhile) {
  for (int steps = 1; steps < 12; ++steps) {
    ASSERT_EQ(run_script("mkdir -p d/a/b d/c && touch d/a/1 d/a/2 d/c/3 d/4", outputs()).exit_code, 0);
    int left = steps;
    value_of(session().files().remove({}, path("outputs/d"), true, nullptr, [&] {
      if (--left == 0) std::filesystem::remove_all(outputs() / "d");
      return true;
    }));
    EXPECT_FALSE(there_is(outputs() / "d")) << steps;
  }
}

TEST_F(FilesByPath, AreNotKeptFromTheirPlacesByATreeThatWasJudgedAndGoes) {
  ASSERT_EQ(run_script("mkdir -p d/a/b && touch d/a/1 d/2", outputs()).exit_code, 0);
  auto& files = session().files();
  const auto put = [&] {
    return files.create({}, path("outputs/f"), 0644, fusefs::IfExists::kReplace)
        .value()
        ->publish()
        .has_value();
  };
  const auto allow = [](const fusefs::FileInfo* there, const fusefs::FileInfo*) {
    return there ? Result<void>() : fail(Code::kNotFound, "it is to be there");
  };
  std::future<bool> incoming;
  bool is_there = true;
  value_of(files.remove({}, path("outputs/d"), true, allow, [&] {
    if (!incoming.valid()) {
      incoming = std::async(std::launch::async, put);
      is_there = incoming.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    }
    return true;
  }));
  EXPECT_TRUE(is_there) << "it waited for the whole removal";
  EXPECT_TRUE(incoming.get());
  EXPECT_THAT(names_in(outputs()), ElementsAre("f"));
  value_of(files.remove({}, path("outputs/f"), true, allow,
                        [] { return false; }));  // in one step: none may come between
  EXPECT_THAT(names_in(outputs()), ElementsAre());
}

TEST_F(FilesByPath, AreNoneWhereAZoneStands) {
  const auto refusal_at = [&](const char* where) {
    const auto made = session().files().create({}, path(where), {}, fusefs::IfExists::kReplace);
    return made ? Error() : made.error();
  };
  EXPECT_EQ(refusal_at("outputs").errno_value, EISDIR);
  EXPECT_EQ(refusal_at("skills").code, Code::kReadOnly);
  EXPECT_EQ(refusal_at("other").code, Code::kReadOnly);
  EXPECT_EQ(refusal_at("workdir").code, Code::kNotFound);
}

TEST_F(FilesByPath, SayWhichRuleRefusedThemAlsoBehindALink) {
  std::filesystem::create_symlink("../skills", outputs() / "link");
  const auto refused = session().files().make_directories({}, path("outputs/link/new"), 0755);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kReadOnly);
  EXPECT_THAT(refused.error().message, HasSubstr("this part of the session is read-only"));
}

TEST_F(FilesByPath, AreListedWithTheirAttributesOnlyForWhoMaySearchTheDirectory) {
  std::filesystem::create_directory(outputs() / "d");
  write(outputs() / "d/file", "x");
  const auto list_as = [&](mode_t mode) {
    ::chmod((outputs() / "d").c_str(), mode);
    return session().files().list({2001, 2001, {}}, path("outputs/d"), "", 10);
  };
  const auto listed = list_as(0744);
  ASSERT_FALSE(listed);
  EXPECT_EQ(listed.error().code, Code::kForbidden);
  EXPECT_EQ(value_of(list_as(0755)).entries.size(), 1u);
}

TEST_F(FilesByPath, AreNotFoundBehindALinkToWhatOnlyBeginsLikeTheMountPoint) {
  start_with([](auto& config) { config.symlink_host_roots = {config.mount_point.parent_path().string()}; });
  write(outputs() / "file", "x");
  std::filesystem::create_symlink(mount().string() + "outputs", outputs() / "link");
  const auto found = session().files().stat({0, 0, {}}, path("outputs/link/file"), true);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kPathTraversalBlocked);
}

/// For the daemon that comes when this one dies in the middle.
TEST_F(FilesByPath, AreNotedBeforeTheyGo) {
  write(temp() / "gone", "x");
  write(outputs() / "gone", "x");
  auto& files = session().files();
  const auto config = session().config();
  const auto noted = config.runtime_dir / (config.id.text() + ".going");
  std::string seen;
  const auto look = [&] {
    if (there_is(noted)) seen = read(noted);
    return true;
  };
  std::filesystem::create_directory(temp() / "last");
  value_of(files.empty_zone(Zone::kTemp, look));
  EXPECT_THAT(seen, StartsWith("temp/"));
  std::filesystem::create_directory(outputs() / "d");
  write(outputs() / "d/one", "x");
  value_of(files.remove({}, path("outputs/d"), true, nullptr, look));
  EXPECT_THAT(seen, HasSubstr("outputs/d/one"));
}

TEST_F(FilesByPath, MayNeedManyDirectoriesOnTheWay) {
  auto& files = session().files();
  std::string deep = "outputs";
  while (deep.size() < 1000) deep += "/a";
  value_of(files.make_directories({}, path(deep.c_str()), 0755));
  EXPECT_EQ(value_of(files.stat({}, path(deep.c_str()), false)).mode & 07777, 0755u);
}

TEST_F(FilesByPath, MakeDirectoriesBehindLinksButNotWhereNoneLeads) {
  auto& files = session().files();
  std::filesystem::create_directory(outputs() / "d");
  std::filesystem::create_symlink("d", outputs() / "link");
  std::filesystem::create_symlink("d/none", outputs() / "dangling");
  value_of(files.make_directories({}, path("outputs/link/x/y"), 0750));
  EXPECT_EQ(mode_of(outputs() / "d/x/y"), 0750u);
  for (const char* behind : {"outputs/dangling", "outputs/dangling/x"}) {
    const auto refused = files.make_directories({}, path(behind), 0755);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kAlreadyExists);
  }
  EXPECT_THAT(names_in(outputs() / "d"), ElementsAre("x"));
}

TEST_F(FilesByPath, AreLeftFromWhereTheyMayNotBeRemoved) {
  const auto top = shared_in_session() / "top";
  std::filesystem::create_directories(top / "a");
  std::filesystem::create_directories(top / "b/c");
  write(top / "a/file", "x");
  EXPECT_OK(::chmod((top / "b").c_str(), 0755));
  EXPECT_OK(::chown(top.c_str(), 1234, 1234));
  EXPECT_OK(::chown((top / "a").c_str(), 1234, 1234));
  auto& files = session().files();
  const Caller caller{1234, 1234, {}};
  const auto target = *RelPath::parse(std::filesystem::relative(top, mount()).string());
  const auto nodes = session().driver().statistics().nodes;
  const auto refused = files.remove(caller, target, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kForbidden);
  EXPECT_TRUE(there_is(top / "b/c"));
  EXPECT_LE(session().driver().statistics().nodes, nodes);
  EXPECT_EQ(files.remove({}, target, false).error().errno_value, ENOTEMPTY);
  EXPECT_TRUE(files.remove({}, target, true));
  EXPECT_FALSE(there_is(top));
}

TEST_F(FilesByPath, StayInZonesThatCannotBeRemoved) {
  write(outputs() / "f", "kept");
  ASSERT_OK(::symlink("..", (temp() / "root").c_str()));
  auto& files = session().files();
  for (const char* zone : {"outputs", "temp/root/outputs"}) {
    const auto refused = files.remove({}, path(zone), true);
    ASSERT_FALSE(refused) << zone;
    EXPECT_EQ(refused.error().code, Code::kReadOnly) << zone;
    EXPECT_EQ(read(outputs() / "f"), "kept") << zone;
  }
  EXPECT_TRUE(files.remove({}, path("temp/root"), true));
  EXPECT_THAT(names_in(outputs()), ElementsAre("f"));
}

TEST_F(FilesByPath, HaveNoNameBeforeTheyAreComplete) {
  auto file = value_of(session().files().create({}, path("outputs/file"), 0644, fusefs::IfExists::kReplace));
  EXPECT_EQ(::write(file->descriptor(), "new", 3), 3);
  EXPECT_THAT(names_in(session().workspace()), ElementsAre("outputs"));
  value_of(file->publish());
  EXPECT_EQ(read(outputs() / "file"), "new");
  EXPECT_THAT(names_in(session().workspace()), ElementsAre("outputs"));

  const auto open = open_file(outputs() / "file", O_RDONLY);
  file = value_of(session().files().create({}, path("outputs/file"), 0644, fusefs::IfExists::kFail));
  EXPECT_FALSE(file->publish());
  EXPECT_EQ(stat_of(outputs() / "file").st_nlink, 1u);
  file.reset();
  EXPECT_THAT(names_in(session().workspace()), ElementsAre("outputs"));
}

TEST_F(FilesByPath, CountUnderTheirOtherNamesWhenOneGoes) {
  auto& files = session().files();
  for (const char* name : {"removed", "replaced", "inside", "emptied"}) {
    const auto kept = outputs() / (std::string("kept-") + name);
    std::filesystem::create_directory(outputs() / "d");
    const auto other = name == std::string("inside")    ? outputs() / "d/inside"
                       : name == std::string("emptied") ? temp() / "emptied"
                                                        : outputs() / name;
    write(kept, "x");
    ASSERT_OK(::link(kept.c_str(), other.c_str()));
    const auto before = stat_of(kept);
    ASSERT_EQ(before.st_nlink, 2u) << name;
    if (name == std::string("removed")) value_of(files.remove({}, path("outputs/removed"), false));
    if (name == std::string("inside")) value_of(files.remove({}, path("outputs/d"), true));
    if (name == std::string("emptied")) value_of(files.empty_zone(Zone::kTemp));
    if (name == std::string("replaced"))
      value_of(
          value_of(files.create({}, path("outputs/replaced"), 0644, fusefs::IfExists::kReplace))->publish());
    EXPECT_EQ(stat_of(kept).st_nlink, 1u) << name;
  }
}

TEST_F(FilesByPath, HaveNoNameLeftForThoseWhoHaveThemOpen) {
  auto& files = session().files();
  for (const char* name : {"removed", "replaced"}) {
    write(outputs() / name, "x");
    const auto file = open_file(outputs() / name, O_RDONLY);
    ASSERT_EQ(stat_of(file).st_nlink, 1u) << name;
    const std::string target = std::string("outputs/") + name;
    if (name == std::string("removed"))
      value_of(files.remove({}, path(target.c_str()), false));
    else
      value_of(value_of(files.create({}, path(target.c_str()), 0644, fusefs::IfExists::kReplace))->publish());
    EXPECT_EQ(stat_of(file).st_nlink, 0u) << name;
    EXPECT_EQ(read(file), "x") << name;
  }
}

/// Where the daemon has hardly a descriptor left.
TEST_F(FilesByPath, AreAllRemovedOrAnErrorIsTold) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  auto& files = session().files();
  for (rlim_t left = 0; left < 12; ++left) {
    for (const char* name : {"d/a", "d/b", "e/c", "f"}) {
      std::filesystem::create_directories((temp() / name).parent_path());
      write(temp() / name, "x");
    }
    const auto next = static_cast<rlim_t>(open_file("/dev/null", O_RDONLY).get());
    const rlimit few{next + left, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const auto removed = files.remove({}, path("temp/d"), true);
    const auto emptied = files.empty_zone(Zone::kTemp);
    ::setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_TRUE(!removed || !there_is(temp() / "d")) << left;
    EXPECT_TRUE(!emptied || names_in(temp()).empty()) << left;
    for (const auto* result : {&removed, &emptied})
      EXPECT_TRUE(*result || result->error().errno_value == EMFILE || result->error().errno_value == ENFILE)
          << left << ": " << result->error().message;
  }
}

/// Of a name that the kernel has not been told of yet.
TEST_F(FilesByPath, AreRemovedRightAfterOthersReplacedThem) {
  auto& files = session().files();
  const auto replace = [&] {
    for (int i = 0; i < 300; ++i)
      value_of(value_of(files.create({}, path("outputs/f"), 0644, fusefs::IfExists::kReplace))->publish());
  };
  auto first = std::async(std::launch::async, replace), second = std::async(std::launch::async, replace);
  const auto is_done = [](auto& work) {
    return work.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  while (!is_done(first) || !is_done(second)) {
    const auto removed = files.remove({}, path("outputs/f"), false);
    EXPECT_TRUE(removed || removed.error().errno_value == ENOENT) << removed.error().message;
  }
  first.get();
  second.get();
}

TEST_F(FilesByPath, ThatADeadDaemonLeftUnfinishedAreRemoved) {
  write(outputs() / ".incoming-1-2", "a file of the user's own");
  write(session().workspace() / ".incoming-1-2", "half");
  session().unmount();
  session().remount();
  EXPECT_THAT(names_in(session().workspace()), ElementsAre("outputs"));
  write(session().workspace() / ".incoming-1-2", "half");
  session().hand_over();
  EXPECT_THAT(names_in(session().workspace()), ElementsAre("outputs"));
  EXPECT_TRUE(there_is(outputs() / ".incoming-1-2"));
}

}  // namespace
}  // namespace okcvm::test
