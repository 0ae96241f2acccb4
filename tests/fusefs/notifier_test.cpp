#include "fusefs/notifier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <new>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/scratch.h"

namespace okcvm::fusefs {
namespace {

using test::ChildProcess;

constexpr int kWaiting = 8;  // so many that no more should

bool are_not_kept() {
  return false;
}

/// In place of a device: the kernel takes nothing from it until it is emptied.
class FullPipe {
 public:
  FullPipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    from_ = FileDescriptor(ends[0]);
    to_ = FileDescriptor(ends[1]);
    const std::array<char, 4096> nothing{};
    while (::write(to_.get(), nothing.data(), nothing.size()) > 0) continue;
    ::fcntl(to_.get(), F_SETFL, O_WRONLY);
    ::fcntl(from_.get(), F_SETFL, O_RDONLY);
  }
  int device() const { return to_.get(); }
  void empty(const std::future<bool>& until) {
    std::array<char, 4096> bytes;
    ::fcntl(from_.get(), F_SETFL, O_RDONLY | O_NONBLOCK);
    while (until.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
      while (::read(from_.get(), bytes.data(), bytes.size()) > 0) continue;
  }

 private:
  FileDescriptor from_, to_;
};

/// Exits with 0, or with the number of what was not so.
int tell_while_the_kernel_takes_nothing(const test::ScratchDirectory& scratch) {
  if (!Teller::start(are_not_kept)) return 1;
  auto state = SessionState::open(scratch / "state", scratch / "going", Start::kAnew);
  if (!state) return 2;
  FullPipe pipe;
  Notifier notifier;
  notifier.start(pipe.device(), scratch.path(), **state);
  const auto ask = [&] { return notifier.inode_now(kRootNode); };
  std::vector<std::future<bool>> others;
  for (int i = 0; i < kWaiting; ++i) others.push_back(std::async(std::launch::async, ask));
  for (auto& other : others)
    if (other.get()) return 3;
  if (ask()) return 4;
  const std::array<NodeId, 1> links{kRootNode};
  auto told = std::async(std::launch::async, [&] { return notifier.links_now(links); });
  if (told.wait_for(std::chrono::milliseconds(100)) == std::future_status::ready) return 5;
  pipe.empty(told);
  return told.get() ? 0 : 6;
}

// Nobody is to follow a link whose text the kernel should have forgotten, however many wait for the kernel.
TEST(NotifierTest, LinksAreToldHoweverLongOthersWait) {
  const test::ScratchDirectory scratch("notifier");
  ChildProcess daemon([&](ChildProcess&) { return tell_while_the_kernel_takes_nothing(scratch); });
  EXPECT_EQ(daemon.join(), 0);
}

/// Kills the teller of this process, and waits for that.
bool kill_teller() {
  const auto self = std::to_string(::getpid());
  pid_t teller = -1;
  std::ifstream("/proc/self/task/" + self + "/children") >> teller;
  pollfd end{Teller::ending(), POLLIN, 0};
  return teller > 0 && ::kill(teller, SIGKILL) == 0 && ::poll(&end, 1, -1) == 1;
}

// The next daemon tells everything, but until it can (it waits for the requests in hand) nobody is to read
// what was changed by path as it was before.
TEST(NotifierTest, WhatTheKernelTakesAtOnceIsToldThoughTheTellerIsDead) {
  const test::ScratchDirectory scratch("notifier");
  ChildProcess daemon([&](ChildProcess&) {
    if (!Teller::start([] { return true; })) return 1;
    auto state = SessionState::open(scratch / "state", scratch / "going", Start::kAnew);
    const FileDescriptor device(
        ::open((scratch / "device").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!state || !device || !kill_teller()) return 2;
    Notifier notifier;
    notifier.start(device.get(), scratch.path(), **state);
    if (!notifier.inode_now(kRootNode) || std::filesystem::file_size(scratch / "device") == 0) return 3;
    const FullPipe pipe;
    Notifier held_up;
    held_up.start(pipe.device(), scratch.path(), **state);
    return held_up.inode_now(kRootNode) ? 4 : 0;
  });
  EXPECT_EQ(daemon.join(), 0);
}

// A daemon whose keeper has died is the last one: nobody will tell what it leaves to the next.
TEST(NotifierTest, TheKernelIsWaitedForWithoutATellerOnceNobodyKeepsTheMounts) {
  const test::ScratchDirectory scratch("notifier");
  ChildProcess daemon([&](ChildProcess&) {
    static std::atomic<bool> is_kept = true;
    if (!Teller::start([] { return is_kept.load(); })) return 1;
    auto state = SessionState::open(scratch / "state", scratch / "going", Start::kAnew);
    FullPipe pipe;
    if (!state || !kill_teller()) return 2;
    Notifier notifier;
    notifier.start(pipe.device(), scratch.path(), **state);
    if (notifier.inode_now(kRootNode)) return 3;
    is_kept = false;
    auto told = std::async(std::launch::async, [&] { return notifier.inode_now(kRootNode); });
    pipe.empty(told);
    if (!told.get()) return 4;
    const std::array<NodeId, 1> links{kRootNode};
    return notifier.links_now(links) ? 0 : 5;
  });
  EXPECT_EQ(daemon.join(), 0);
}

TEST(NotifierTest, GoesOnWhereThereIsNoMemoryForWhatComesAfterwards) {
  const test::ScratchDirectory scratch("notifier");
  ChildProcess daemon([&](ChildProcess&) {
    auto state = SessionState::open(scratch / "state", scratch / "going", Start::kAnew);
    const FileDescriptor device(::open((scratch / "device").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!state || !device) return 1;
    Notifier notifier;
    notifier.start(device.get(), scratch.path(), **state);
    std::atomic<bool> is_told = false;
    notifier.after_changes_in(kRootNode, [] { throw std::bad_alloc(); });
    notifier.after_changes_in(kRootNode, [&] { is_told = true; });
    notifier.drain();
    if (!is_told) return 2;
    return notifier.times_late() == 1 ? 0 : 3;  // the next daemon is to know
  });
  EXPECT_EQ(daemon.join(), 0);
}

TEST(NotifierTest, LinksThatAreNotToldBeforeTheEndAreSaidNotToBe) {
  const test::ScratchDirectory scratch("notifier");
  ChildProcess daemon([&](ChildProcess&) {
    auto state = SessionState::open(scratch / "state", scratch / "going", Start::kAnew);
    if (!Teller::start(are_not_kept) || !state) return 1;
    FullPipe pipe;
    Notifier notifier;
    notifier.start(pipe.device(), scratch.path(), **state);
    const std::array<NodeId, 1> links{kRootNode};
    auto told = std::async(std::launch::async, [&] { return notifier.links_now(links); });
    if (told.wait_for(std::chrono::milliseconds(100)) == std::future_status::ready) return 2;
    notifier.cut();
    return told.get() ? 3 : 0;
  });
  EXPECT_EQ(daemon.join(), 0);
}

// Nobody is to read what was changed by path as it was before.
TEST(NotifierTest, WhoWaitsTellsTheKernelHimselfWhereNoThreadCanBeHad) {
  const test::ScratchDirectory scratch("notifier");
  ChildProcess daemon([&](ChildProcess&) {
    auto state = SessionState::open(scratch / "state", scratch / "going", Start::kAnew);
    const FileDescriptor device(
        ::open((scratch / "device").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    pthread_attr_t more_than_there_is;
    ::pthread_attr_init(&more_than_there_is);
    ::pthread_attr_setstacksize(&more_than_there_is, std::size_t{1} << 47);
    if (!state || !device || ::pthread_setattr_default_np(&more_than_there_is) != 0) return 1;
    Notifier notifier;
    notifier.start(device.get(), scratch.path(), **state);
    bool has_ended = false;
    notifier.inode(kRootNode);
    notifier.after_changes_in(kRootNode, [&] { has_ended = true; });
    notifier.inode(kRootNode);
    notifier.drain();
    const auto size_of = [](const std::string& name) {
      return sizeof(fuse_out_header) + (name.empty() ? sizeof(fuse_notify_inval_inode_out)
                                                     : sizeof(fuse_notify_inval_entry_out) + name.size() + 1);
    };
    const auto all = 2 * size_of("") + size_of(std::string(NAME_MAX + 1, '?'));
    if (std::filesystem::file_size(scratch / "device") != all) return 2;
    return has_ended ? 0 : 3;
  });
  EXPECT_EQ(daemon.join(), 0);
}

}  // namespace
}  // namespace okcvm::fusefs
