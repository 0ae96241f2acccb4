#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "fusefs/session_mount.h"
#include "fusefs/teller.h"
#include "snapshots/store.h"
#include "tools/daemon/host/daemon.h"
#include "tools/daemon/host/keeper.h"
#include "tools/daemon/host/options.h"
#include "tools/daemon/host/service_manager.h"

namespace {

okcvm::daemon::Backends real_backends() {
  okcvm::daemon::Backends backends;
  backends.mount = okcvm::fusefs::SessionMount::mount;
  backends.take_over = okcvm::fusefs::SessionMount::take_over;
  backends.detach_stale = okcvm::fusefs::detach_stale_mounts;
  backends.forget_mount = okcvm::fusefs::forget_mount;
  backends.open_store = okcvm::snapshots::Store::open;
  backends.telling_ends = okcvm::fusefs::Teller::ending();
  return backends;
}

int run(int argc, char** argv) {
  using namespace okcvm::daemon;
  const auto options = read_options(argc, argv, environ);
  if (!options) {
    std::cerr << "okcvmd: " << options.error().message << "\n";
    return 2;
  }
  if (options->help) return print_help(std::cout), 0;
  if (options->help_table) return print_help_table(std::cout), 0;
  if (options->version) return std::cout << "okcvmd " << OKCVM_VERSION << "\n", 0;
  if (options->print_config) return print_config(*options, std::cout), 0;
  // They mean nothing here, but would end the keeper, the daemon or its teller, which inherit this.
  for (const int signal : {SIGUSR1, SIGUSR2, SIGPIPE}) std::signal(signal, SIG_IGN);
  if (options->keeper) return run_keeper(argv, options->run_dir);
  static const ServiceManager manager;
  if (auto started = okcvm::fusefs::Teller::start([] { return manager.is_there(); }); !started) {
    std::cerr << "okcvmd: " << started.error().message << "\n";
    return 1;
  }
  return run_daemon(*options, real_backends());
}

/// What is opened later must not be taken for standard input, output or error where that is closed. What is
/// written there still fails.
void open_standard_files() {
  for (int file = 0; file >= 0 && file <= STDERR_FILENO;)
    file = ::fcntl(file, F_GETFD) < 0 ? ::open("/dev/null", O_RDONLY) + 1 : file + 1;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_files();
  const int status = run(argc, argv);
  if (status != 0 || std::cout.flush()) return status;
  std::cerr << "okcvmd: standard output cannot be written\n";
  return 1;
}
