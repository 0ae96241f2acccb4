// Snapshots and restores under programs that go on working.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <sstream>
#include <thread>

#include "tests/support/file_io.h"
#include "tests/tools/daemon_fixture.h"

namespace okcvm::test {
namespace {

using nlohmann::json;
using ::testing::UnorderedElementsAreArray;

class LiveSnapshots : public DaemonWithSession {
 protected:
  std::filesystem::path in(const std::string& path) const { return mount("s1") / path; }
  json post(const std::string& route, const json& body = json::object()) {
    const auto answer = ask("POST", "/v1/sessions/s1/" + route, body.dump());
    EXPECT_LT(answer.status, 300) << answer.body;
    return answer.json();
  }
  std::string snapshot(const std::string& label) {
    return post("snapshots", {{"label", label}}).value("id", "");
  }
  std::string git(const std::string& arguments) const {
    const std::string command =
        "git --git-dir=" + (root_ / "state/snapshots/s1.git").string() + " " + arguments;
    std::string output;
    FILE* pipe = ::popen(command.c_str(), "r");
    for (std::array<char, 4096> piece; const auto got = std::fread(piece.data(), 1, piece.size(), pipe);)
      output.append(piece.data(), got);
    EXPECT_EQ(::pclose(pipe), 0) << command;
    return output;
  }
  /// Every file of a snapshot by its name: the names of its bytes, one for each place where it stands.
  std::map<std::string, std::vector<std::string>> files_of(const std::string& id) const {
    std::map<std::string, std::vector<std::string>> files;
    std::istringstream rows(git("ls-tree -r " + id + ":workspace"));
    for (std::string mode, type, oid, path; rows >> mode >> type >> oid >> path;)
      files[path.substr(path.rfind('/') + 1)].push_back(oid);
    return files;
  }
};

TEST_F(LiveSnapshots, HoldEveryFileOnceWhileNamesChange) {
  constexpr int kFiles = 200, kSnapshots = 15;
  for (const char* folder : {"outputs/a", "outputs/b"}) std::filesystem::create_directory(in(folder));
  for (int i = 0; i < kFiles; ++i) write(in("outputs/a/f" + std::to_string(i)), std::to_string(i));
  const auto before = files_of(snapshot("before"));
  ASSERT_EQ(before.size(), static_cast<std::size_t>(kFiles));

  std::atomic<bool> done = false;
  std::atomic<int> failures = 0;
  std::thread renamer([&] {
    for (bool away = false; !done; away = !away)
      for (int i = 0; i < kFiles && !done; ++i) {
        const std::string name = "/f" + std::to_string(i);
        const auto from = in((away ? "outputs/b" : "outputs/a") + name),
                   to = in((away ? "outputs/a" : "outputs/b") + name);
        failures += ::rename(from.c_str(), to.c_str()) != 0;
      }
  });
  std::vector<std::string> taken;
  for (int i = 0; i < kSnapshots; ++i) taken.push_back(snapshot("storm " + std::to_string(i)));
  done = true;
  renamer.join();

  EXPECT_EQ(failures, 0);
  for (const auto& id : taken) EXPECT_EQ(files_of(id), before) << "each file once, with its own bytes";
  const auto verified = ask("GET", "/v1/sessions/s1/verify").json();
  EXPECT_TRUE(verified["problems"].empty()) << verified;
  EXPECT_EQ(git("fsck --strict --no-dangling 2>&1"), "");
}

TEST_F(LiveSnapshots, NameWhatIsBeingWrittenAndHaveAllOfItNextTime) {
  constexpr int kWriters = 3, kSnapshots = 8;
  std::atomic<int> failures = 0, ready = 0;
  std::vector<std::string> names;
  std::vector<std::jthread> writers;
  for (int number = 0; number < kWriters; ++number) {
    names.push_back("outputs/log" + std::to_string(number));
    writers.emplace_back([&, number, path = in(names.back())](const std::stop_token& stop) {
      const FileDescriptor file(::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
      for (int line = 0; !stop.stop_requested(); ++line) {
        const std::string text = "line " + std::to_string(line) + "\n";
        failures += ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size());
        if (line % 50 != 0) continue;
        const auto extra = in("uploads/x" + std::to_string(number) + "-" + std::to_string(line));
        const FileDescriptor made(::open(extra.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        failures += !made || ::write(made.get(), "x", 1) != 1;
        if (line == 0) ++ready;
      }
    });
  }
  while (ready < kWriters) std::this_thread::yield();
  for (int i = 0; i < kSnapshots; ++i) {
    const auto taken = post("snapshots", {{"label", "busy"}});
    const auto in_flight = taken["in_flight"].get<std::vector<std::string>>();
    for (const auto& name : names) EXPECT_THAT(in_flight, ::testing::Contains(name)) << taken;
    EXPECT_EQ(ask("GET", "/v1/sessions/s1/diff").status, 200);
    EXPECT_TRUE(ask("GET", "/v1/sessions/s1/verify").json()["problems"].empty());
  }
  writers.clear();
  EXPECT_EQ(failures, 0);
  const std::string last = snapshot("quiet");
  for (const auto& name : names) EXPECT_EQ(git("show " + last + ":workspace/" + name), read(in(name)));
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/verify").json()["ok"], true);
}

TEST_F(LiveSnapshots, RestoredUnderMappingsAndLocks) {
  write(in("outputs/f"), "old!");
  const std::string first = snapshot("first");
  write(in("outputs/f"), "new!");
  const FileDescriptor file(::open(in("outputs/f").c_str(), O_RDWR | O_CLOEXEC));
  auto* bytes = static_cast<char*>(::mmap(nullptr, 4, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(file.get(), F_OFD_SETLK, &whole), 0);

  post("restore", {{"snapshot", first}});
  EXPECT_EQ(read(in("outputs/f")), "old!");
  EXPECT_EQ(std::string(bytes, 4), "new!") << "the mapping keeps its file";
  bytes[0] = 'N';
  EXPECT_EQ(read(in("outputs/f")), "old!");
  const FileDescriptor restored(::open(in("outputs/f").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(::fcntl(restored.get(), F_OFD_SETLK, &whole), 0) << "the lock is on the file that went";
  whole.l_type = F_UNLCK;
  EXPECT_EQ(::fcntl(file.get(), F_OFD_SETLK, &whole), 0);
  std::array<char, 4> content{};
  EXPECT_EQ(::pread(file.get(), content.data(), content.size(), 0), 4);
  EXPECT_EQ(std::string(content.data(), 4), "New!");
  ::munmap(bytes, 4);
  post("undo");
  EXPECT_EQ(read(in("outputs/f")), "new!");
}

TEST_F(LiveSnapshots, RestoredUnderWorkingDirectories) {
  std::filesystem::create_directory(in("outputs/stays"));
  write(in("outputs/stays/f"), "old");
  const std::string first = snapshot("first");
  write(in("outputs/stays/f"), "new");
  std::filesystem::create_directory(in("outputs/goes"));
  write(in("outputs/goes/f"), "x");
  std::thread([&] {
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(in("outputs/goes").c_str()), 0);
    const FileDescriptor stays(::open(in("outputs/stays").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    post("restore", {{"snapshot", first}});
    EXPECT_EQ(::open("made", O_CREAT | O_WRONLY, 0644), -1);
    EXPECT_EQ(errno, ENOENT);  // as in any directory that was removed
    EXPECT_EQ(::access("f", F_OK), -1);
    EXPECT_FALSE(std::filesystem::exists(in("outputs/goes")));
    ASSERT_EQ(::fchdir(stays.get()), 0);
    EXPECT_EQ(read("f"), "old");
    write("made", "here");
    EXPECT_EQ(read(in("outputs/stays/made")), "here");
  }).join();
  post("undo");
  EXPECT_EQ(read(in("outputs/goes/f")), "x");
}

TEST_F(LiveSnapshots, RestoredUnderWhoStandsInARenamedDirectory) {
  std::filesystem::create_directories(in("outputs/p/sub"));
  write(in("outputs/p/sub/f"), "old");
  write(in("outputs/p/log"), "log\n");
  write(in("outputs/p/mapped"), "old!");
  const std::string first = snapshot("first");
  std::filesystem::rename(in("outputs/p"), in("outputs/q"));
  write(in("outputs/q/sub/f"), "new");
  write(in("outputs/q/sub/later"), "x");
  const auto log = open_file(in("outputs/q/log"), O_WRONLY | O_APPEND);
  auto mapped = open_file(in("outputs/q/mapped"), O_RDWR);
  auto* bytes = static_cast<char*>(::mmap(nullptr, 4, PROT_READ | PROT_WRITE, MAP_SHARED, mapped.get(), 0));
  ASSERT_NE(bytes, MAP_FAILED);
  mapped.reset();
  std::thread([&] {
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(in("outputs/q/sub").c_str()), 0);
    post("restore", {{"snapshot", first}});
    // Before anybody looks for it under its name.
    EXPECT_EQ(std::filesystem::current_path(), in("outputs/p/sub"));
    write("made", "here");
    EXPECT_EQ(read("f"), "old");
    EXPECT_EQ(::access("later", F_OK), -1);
    EXPECT_EQ(errno, ENOENT);
    write_all(log, "more\n");
    bytes[0] = 'b';
    const std::string second = snapshot("second");
    EXPECT_EQ(git("show " + second + ":workspace/outputs/p/sub/made"), "here");
    EXPECT_EQ(git("show " + second + ":workspace/outputs/p/log"), "log\nmore\n");
    EXPECT_EQ(git("show " + second + ":workspace/outputs/p/mapped"), "bld!");

    EXPECT_FALSE(std::filesystem::exists(in("outputs/q")));
    EXPECT_EQ(list(in("outputs")), std::vector<std::string>{"p"});
    EXPECT_EQ(read(in("outputs/p/sub/made")), "here");
    EXPECT_EQ(std::filesystem::current_path(), in("outputs/p/sub"));
    EXPECT_EQ(read("../log"), "log\nmore\n");
    EXPECT_EQ(stat_of(log).st_ino, stat_of(in("outputs/p/log")).st_ino);
    std::filesystem::create_directory(in("outputs/q"));  // the name is free
    EXPECT_NE(stat_of(in("outputs/q")).st_ino, stat_of(in("outputs/p")).st_ino);
    EXPECT_EQ(ask("GET", "/v1/sessions/s1/verify").json()["ok"], true);
  }).join();
  ::munmap(bytes, 4);
  post("undo");
  EXPECT_EQ(read(in("outputs/q/sub/f")), "new");
  EXPECT_FALSE(std::filesystem::exists(in("outputs/p")));
}

TEST_F(LiveSnapshots, RestoredUnderWhoStandsInADirectoryThatWentElsewhere) {
  std::filesystem::create_directories(in("outputs/x/p/sub"));
  write(in("outputs/x/p/sub/f"), "old");
  write(in("outputs/x/p/log"), "log\n");
  const std::string first = snapshot("first");
  std::filesystem::create_directories(in("temp/backup/today"));
  std::filesystem::rename(in("outputs/x/p"), in("temp/backup/today/q"));
  std::filesystem::remove(in("outputs/x"));
  write(in("temp/backup/today/q/sub/f"), "new");
  write(in("temp/backup/today/q/sub/later"), "x");
  const auto log = open_file(in("temp/backup/today/q/log"), O_WRONLY | O_APPEND);
  std::thread([&] {
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(in("temp/backup/today/q/sub").c_str()), 0);
    const ino_t before = stat_of(".").st_ino;
    post("restore", {{"snapshot", first}});
    EXPECT_EQ(std::filesystem::current_path(), in("outputs/x/p/sub"));  // before anybody looks for it
    EXPECT_EQ(::symlink("../../../../temp", "link"), 0);                // as deep as it is
    EXPECT_EQ(read("f"), "old");
    EXPECT_EQ(::access("later", F_OK), -1);
    EXPECT_EQ(errno, ENOENT);
    write("made", "here");
    EXPECT_EQ(stat_of(".").st_ino, before);
    EXPECT_EQ(stat_of("..").st_ino, stat_of(in("outputs/x/p")).st_ino);
    EXPECT_EQ(list("link"), std::vector<std::string>{});
    write_all(log, "more\n");
    const std::string second = snapshot("second");
    EXPECT_EQ(git("show " + second + ":workspace/outputs/x/p/sub/made"), "here");
    EXPECT_EQ(git("show " + second + ":workspace/outputs/x/p/log"), "log\nmore\n");
    EXPECT_EQ(list(in("outputs/x/p")), (std::vector<std::string>{"log", "sub"}));
    std::filesystem::rename(in("outputs/x/p"), in("uploads/p"));
    EXPECT_EQ(std::filesystem::current_path(), in("uploads/p/sub"));
    EXPECT_EQ(::readlink("link", std::array<char, 100>().data(), 100), -1) << "it would lead out now";
    const std::string third = snapshot("third");
    EXPECT_EQ(git("show " + third + ":workspace/uploads/p/sub/made"), "here");
    EXPECT_EQ(ask("GET", "/v1/sessions/s1/verify").json()["ok"], true);
  }).join();
  post("restore", {{"snapshot", first}});
  EXPECT_EQ(read(in("outputs/x/p/sub/f")), "old");
}

/// Until the kernel has found it, the directory is for it below what it was in, at whatever depth that is.
TEST_F(LiveSnapshots, LinksDoNotLeadOutOfADirectoryThatTheKernelDidNotFind) {
  std::filesystem::create_directories(in("outputs/a/b/c/d"));
  write(in("outputs/a/b/c/d/f"), "by which it is known");
  const std::string first = snapshot("first");
  std::filesystem::create_directories(in("temp/x/y/z"));
  std::filesystem::rename(in("outputs/a/b/c/d"), in("temp/x/y/z/d"));
  write(in("temp/f"), "inside");
  const auto stand = open_file(in("temp/x/y/z/d"), O_RDONLY | O_DIRECTORY);
  const auto link = [&](const char* text) {
    ::unlinkat(stand.get(), "link", 0);
    return ::symlinkat(text, stand.get(), "link") == 0 ? 0 : errno;
  };
  EXPECT_EQ(link("../../../../../temp/f"), 0);
  EXPECT_EQ(::unlinkat(stand.get(), "link", 0), 0);
  ASSERT_EQ(::mount("none", in("outputs/a/b").c_str(), "tmpfs", 0, nullptr), 0);  // where it does not look
  post("restore", {{"snapshot", first}, {"paths", {"outputs/a/b/c/d", "temp/x/y/z/d"}}});
  EXPECT_EQ(link("../../../../../temp/f"), EPERM);
  EXPECT_EQ(link("../../../temp/f"), EPERM);
  EXPECT_EQ(link("../../f"), 0);  // so much stays inside anywhere
  std::filesystem::rename(in("temp/x/y/z"), in("temp/z"));
  EXPECT_EQ(read("/proc/self/fd/" + std::to_string(stand.get()) + "/link"), "inside");
  EXPECT_EQ(link("../../../temp/f"), EPERM);
  ASSERT_EQ(::umount2(in("outputs/a/b").c_str(), MNT_DETACH), 0);
  EXPECT_EQ(link("../../../../../temp/f"), 0) << "it is looked for again";
  EXPECT_EQ(read(in("outputs/a/b/c/d/link")), "inside");
}

TEST_F(LiveSnapshots, WhatTheKernelDidNotFindIsLookedForByTheNextDaemon) {
  stop();
  start({"--keeper"});
  std::filesystem::create_directories(in("outputs/a/b/d"));
  write(in("outputs/a/b/d/f"), "by which it is known");
  const std::string first = snapshot("first");
  std::filesystem::create_directory(in("temp/x"));
  std::filesystem::rename(in("outputs/a/b/d"), in("temp/x/d"));
  const auto stand = open_file(in("temp/x/d"), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::mount("none", in("outputs/a").c_str(), "tmpfs", 0, nullptr), 0);
  post("restore", {{"snapshot", first}, {"paths", {"outputs/a/b/d", "temp/x/d"}}});
  EXPECT_EQ(::symlinkat("../../../temp", stand.get(), "link"), -1);
  EXPECT_EQ(errno, EPERM);
  ASSERT_EQ(::umount2(in("outputs/a").c_str(), MNT_DETACH), 0);
  kill_daemon();
  EXPECT_EQ(::symlinkat("../../../temp", stand.get(), "link"), 0);
  EXPECT_EQ(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(stand.get())),
            in("outputs/a/b/d"));
}

/// As the kernel may have their texts: where the directory was they lead to less.
TEST_F(LiveSnapshots, ADirectoryWithLinksThatMightLeadOutBecomesAnother) {
  std::filesystem::create_directories(in("outputs/a/b/c/d"));
  ASSERT_EQ(::symlink("../../../../../temp/f", in("outputs/a/b/c/d/link").c_str()), 0);
  write(in("temp/f"), "inside");
  EXPECT_EQ(read(in("outputs/a/b/c/d/link")), "inside");
  const std::string first = snapshot("first");
  std::filesystem::rename(in("outputs/a/b/c/d"), in("uploads/d"));
  const auto stand = open_file(in("uploads/d"), O_RDONLY | O_DIRECTORY);
  post("restore", {{"snapshot", first}});
  EXPECT_EQ(read(in("outputs/a/b/c/d/link")), "inside");
  EXPECT_FALSE(std::filesystem::exists(in("uploads/d")));
  EXPECT_EQ(::openat(stand.get(), "link", O_RDONLY | O_CLOEXEC), -1);
  EXPECT_EQ(::symlinkat("../f", stand.get(), "made"), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(LiveSnapshots, SeeWhatIsDoneToADirectoryThatBecameAnother) {
  std::filesystem::create_directories(in("outputs/a/b/c/d/sub"));
  ASSERT_EQ(::symlink("../../../../../temp/f", in("outputs/a/b/c/d/link").c_str()), 0);
  EXPECT_NE(std::filesystem::read_symlink(in("outputs/a/b/c/d/link")), "");
  const std::string first = snapshot("first");
  std::filesystem::rename(in("outputs/a/b/c/d"), in("uploads/d"));
  const auto stand = open_file(in("uploads/d/sub"), O_RDONLY | O_DIRECTORY);
  const auto link = open_file(in("uploads/d/link"), O_PATH | O_NOFOLLOW);
  post("restore", {{"snapshot", first}});
  const std::string second = snapshot("second");
  EXPECT_EQ(::fchmod(stand.get(), 0700), 0);
  EXPECT_EQ(::fsetxattr(stand.get(), "user.k", "v", 1, 0), 0);
  const timespec times[2] = {{1, 0}, {2, 0}};
  EXPECT_EQ(::utimensat(link.get(), "", times, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW), 0);
  snapshot("third");
  EXPECT_EQ(stat_of(in("outputs/a/b/c/d/sub")).st_mode & 07777, 0700u);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/verify").json()["ok"], true);
  post("restore", {{"snapshot", second}});
  EXPECT_NE(stat_of(in("outputs/a/b/c/d/sub")).st_mode & 07777, 0700u);
  EXPECT_EQ(::getxattr(in("outputs/a/b/c/d/sub").c_str(), "user.k", nullptr, 0), -1);
}

/// A link that the restore removes cannot be asked where it leads any more.
TEST_F(LiveSnapshots, RestoredUnderWhoStandsBesideALinkThatGoes) {
  std::filesystem::create_directories(in("outputs/c/sub"));
  write(in("outputs/c/sub/f"), "old");
  const std::string first = snapshot("first");
  std::filesystem::create_directories(in("outputs/a/b"));
  std::filesystem::rename(in("outputs/c"), in("outputs/a/b/c"));
  ASSERT_EQ(::symlink("sub/f", in("outputs/a/b/c/link").c_str()), 0);
  ASSERT_EQ(::symlink("../sub/f", in("outputs/a/b/c/sub/other").c_str()), 0);
  EXPECT_EQ(read(in("outputs/a/b/c/link")), "old");
  std::thread([&] {
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(in("outputs/a/b/c/sub").c_str()), 0);
    post("restore", {{"snapshot", first}});
    EXPECT_EQ(std::filesystem::current_path(), in("outputs/c/sub"));
    EXPECT_EQ(::access("other", F_OK), -1);
    EXPECT_EQ(::access("../link", F_OK), -1);
    EXPECT_EQ(errno, ENOENT);
    write("made", "here");
    EXPECT_EQ(read("f"), "old");
  }).join();
  EXPECT_EQ(read(in("outputs/c/sub/made")), "here");
}

/// What is in it is another one, too: the kernel has the former ones where they were, and takes them along.
TEST_F(LiveSnapshots, NothingLeadsOutOfADirectoryThatBecameAnother) {
  write(root_ / "secret", "the host's");
  std::filesystem::create_directories(in("outputs/v/w/x/y/d/e"));
  std::filesystem::create_directories(in("outputs/a/b/c/q"));
  const std::string out = "../../../../../secret";
  ASSERT_EQ(::symlink(out.c_str(), in("outputs/v/w/x/y/d/link").c_str()), 0);
  ASSERT_EQ(::symlink(("../" + out).c_str(), in("outputs/v/w/x/y/d/e/link").c_str()), 0);
  for (const char* name : {"link", "e/link"})
    EXPECT_NE(std::filesystem::read_symlink(in("outputs/v/w/x/y/d") / name), "");
  const std::string first = snapshot("first");
  std::filesystem::rename(in("outputs/v/w/x/y/d"), in("outputs/a/b/c/q/d"));
  const auto stand = open_file(in("outputs/a/b/c/q/d"), O_RDONLY | O_DIRECTORY);
  const auto below = open_file(in("outputs/a/b/c/q/d/e"), O_RDONLY | O_DIRECTORY);
  post("restore", {{"snapshot", first}});
  for (const char* name : {"link", "e/link"})
    EXPECT_NE(std::filesystem::read_symlink(in("outputs/v/w/x/y/d") / name), "");
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/files/outputs/v/w/x/y/d/e").json()["entries"].size(), 1u);
  std::filesystem::rename(in("outputs/a/b/c/q"), in("outputs/q"));
  for (const auto* directory : {&stand, &below}) {
    EXPECT_EQ(::openat(directory->get(), "link", O_RDONLY | O_CLOEXEC), -1);
    EXPECT_EQ(::openat(directory->get(), "made", O_CREAT | O_WRONLY | O_CLOEXEC, 0644), -1);
    EXPECT_EQ(errno, ENOENT);
  }
  EXPECT_EQ(::openat(stand.get(), "e/link", O_RDONLY | O_CLOEXEC), -1);
  write(in("outputs/v/w/x/y/d/e/made"), "here");
  EXPECT_EQ(list(in("outputs/v/w/x/y/d/e")), (std::vector<std::string>{"link", "made"}));
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/verify").json()["ok"], true);
}

TEST_F(LiveSnapshots, RestoredUnderAFileThatWentToAnotherDirectory) {
  std::filesystem::create_directories(in("outputs/p/sub"));
  write(in("outputs/p/sub/log"), "log\n");
  const std::string first = snapshot("first");
  std::filesystem::rename(in("outputs/p"), in("temp/p"));
  const auto log = open_file(in("temp/p/sub/log"), O_WRONLY | O_APPEND);
  post("restore", {{"snapshot", first}});
  // Nobody has looked for its directory, which is new.
  write_all(log, "more\n");
  const auto second = post("snapshots", {{"label", "second"}});
  EXPECT_EQ(second["in_flight"], json({"outputs/p/sub/log"}));
  EXPECT_EQ(second["stats"]["rescanned"], false) << second;
  EXPECT_EQ(git("show " + second.value("id", "") + ":workspace/outputs/p/sub/log"), "log\nmore\n");
  EXPECT_EQ(read(in("outputs/p/sub/log")), "log\nmore\n");
  EXPECT_FALSE(std::filesystem::exists(in("temp/p")));
}

/// How far up a link may lead depends on where it stands, and the kernel goes up from where it believes it.
TEST_F(LiveSnapshots, RestoredADirectoryIsNowhereDeeperThanTheKernelBelieves) {
  std::filesystem::create_directories(in("outputs/x/y/a"));
  write(in("outputs/x/y/a/f"), "x");
  write(root_ / "mnt/secret", "the host's");
  const std::string first = snapshot("first");
  std::filesystem::rename(in("outputs/x/y/a"), in("outputs/a"));
  std::thread([&] {
    ASSERT_EQ(::unshare(CLONE_FS), 0);
    ASSERT_EQ(::chdir(in("outputs/a").c_str()), 0);
    post("restore", {{"snapshot", first}});
    for (const char* text : {"../../../secret", "../../../../secret"}) {
      EXPECT_EQ(::symlink(text, "link"), 0);
      EXPECT_EQ(::open("link", O_RDONLY | O_CLOEXEC), -1);
      EXPECT_EQ(::unlink("link"), 0);
    }
    EXPECT_EQ(::symlink("../../../../../secret", "link"), -1);
  }).join();
  EXPECT_EQ(list(in("outputs/x/y/a")), std::vector<std::string>{"f"});
}

TEST_F(LiveSnapshots, HaveLabelsOfManyLines) {
  std::string label = "\"first\"\n\n'second' \\ $(third)\n";
  while (label.size() < 64 << 10) label += "line\t\"" + std::to_string(label.size()) + "\"\n";
  label.resize(64 << 10);
  write(in("outputs/f"), "x");
  const auto taken = post("snapshots", {{"label", label}});
  EXPECT_EQ(taken["label"], label);
  EXPECT_EQ(ask("GET", "/v1/sessions/s1/snapshots").json()["snapshots"][0]["label"], label);
  EXPECT_EQ(ask("POST", "/v1/sessions/s1/snapshots", json({{"label", label + "x"}}).dump()).code(),
            "invalid_request");
  EXPECT_EQ(git("fsck --strict --no-dangling 2>&1"), "");
}

}  // namespace
}  // namespace okcvm::test
