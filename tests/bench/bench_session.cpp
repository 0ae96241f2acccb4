#include <sys/stat.h>

#include <exception>
#include <iostream>
#include <string>

#include "tests/support/session.h"
#include "tests/support/watchdog.h"

/// Mounts a session below $OKCVM_TEST_DIR, prints its mount point, and answers "counts" on its standard input
/// with one line of "OPCODE count" pairs until the input ends. Argument: auto or off (passthrough).
int main(int count, char** arguments) try {
  using namespace okcvm;
  ::umask(0);
  test::Watchdog::instance();
  const bool off = count > 1 && std::string(arguments[1]) == "off";
  test::Session session("bench", [&](fusefs::MountConfig& config) {
    config.passthrough = off ? fusefs::Passthrough::kOff : fusefs::Passthrough::kAuto;
  });
  std::cout << session.mount().string() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    for (const auto& operation : session.driver().statistics().operations)
      std::cout << operation.name << " " << operation.count << " ";
    std::cout << std::endl;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_session: " << error.what() << "\n";
  return 1;
}
