#include <dirent.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "tests/fuzz/expect.h"
#include "tools/daemon/host/keeper_notices.h"

/// What a daemon sends to its keeper: any text with any number of descriptors, over a real socket.
namespace {

using namespace okcvm;
using namespace okcvm::daemon;

constexpr std::size_t kMostDescriptors = 40;  // more than the keeper takes of one message

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder)) ++count;
  ::closedir(folder);
  return count;
}

/// Mostly fields that mean something.
std::string message_of(FuzzedDataProvider& provider) {
  constexpr std::array kLines{"FDSTORE=1",  "FDSTOREREMOVE=1", "FDNAME=control", "FDNAME=okcvm-s1",
                              "FDNAME=a:b", "FDNAME=",         "READY=1",        "BARRIER=1",
                              "FDPOLL=0",   "FDSTORE=0"};
  std::string text;
  for (auto lines = provider.ConsumeIntegralInRange(0, 5); lines > 0; --lines) {
    if (provider.ConsumeBool())
      text += kLines.at(provider.ConsumeIntegralInRange<std::size_t>(0, kLines.size() - 1));
    else
      text += provider.ConsumeRandomLengthString(300);
    text += provider.ConsumeBool() ? "\n" : "";
  }
  return text;
}

void send(int socket, const std::string& text, int descriptor, std::size_t times) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> space{};
  std::array<int, kMostDescriptors> descriptors{};
  descriptors.fill(descriptor);
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (times > 0) {
    header.msg_control = space.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * times);
    auto* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int) * times);
    std::memcpy(CMSG_DATA(item), descriptors.data(), sizeof(int) * times);
  }
  FUZZ_EXPECT(::sendmsg(socket, &header, 0) == static_cast<ssize_t>(text.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FileDescriptor given(::memfd_create("given", MFD_CLOEXEC));
  std::array<int, 2> ends{};
  FUZZ_EXPECT(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const FileDescriptor daemon(ends[0]), keeper(ends[1]);
  constexpr int kOn = 1;
  FUZZ_EXPECT(::setsockopt(keeper.get(), SOL_SOCKET, SO_PASSCRED, &kOn, sizeof kOn) == 0);
  const auto before = open_descriptors();

  FuzzedDataProvider provider(data, size);
  KeptDescriptors kept;
  while (provider.remaining_bytes() > 0) {
    const auto text = message_of(provider);
    send(daemon.get(), text, given.get(), provider.ConsumeIntegralInRange<std::size_t>(0, kMostDescriptors));
    auto notice = receive_notice(keeper.get());
    FUZZ_EXPECT(notice && notice->sender == ::getpid());
    FUZZ_EXPECT(text.starts_with(notice->text));
    const bool says_ready = kept.is_ready();
    kept.carry_out(std::move(*notice));
    FUZZ_EXPECT(!says_ready || kept.is_ready());
    FUZZ_EXPECT(open_descriptors() == before + kept.all().size());
    for (const auto& [name, descriptor] : kept.all()) {
      FUZZ_EXPECT(descriptor && !name.empty() && name.size() <= 255);
      FUZZ_EXPECT(name.find_first_of(": \n") == name.npos);
    }
  }
  FUZZ_EXPECT(!receive_notice(keeper.get()));
  return 0;
}
