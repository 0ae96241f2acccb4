#include "snapshots/mapped_reads.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace okcvm::snapshots {
namespace {

thread_local volatile sig_atomic_t is_reading = 0;
std::uintptr_t page_size = 4096;

/// Puts a page of zeros where the one is that cannot be read; the read is then done again.
void on_sigbus(int signal, siginfo_t* info, void*) {
  char* const at = static_cast<char*>(info->si_addr);
  void* const page = at - (reinterpret_cast<std::uintptr_t>(at) & (page_size - 1));
  if (!is_reading || info->si_code != BUS_ADRERR ||
      ::mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != page)
    ::signal(signal, SIG_DFL);  // it comes again
}

}  // namespace

MappedReads::MappedReads() {
  is_reading = 1;
}

MappedReads::~MappedReads() {
  is_reading = 0;
}

void watch_mapped_reads() {
  page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace okcvm::snapshots
