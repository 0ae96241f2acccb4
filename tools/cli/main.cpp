#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tools/cli/context.h"
#include "tools/cli/help.h"
#include "tools/cli/text.h"

namespace {

using namespace okcvm::cli;

std::string socket_path(const Invocation& invocation) {
  if (auto given = invocation.option("socket")) return *given;
  const char* environment = std::getenv("OKCVM_SOCKET");
  if (environment != nullptr && *environment != '\0') return environment;
  return std::string(kDefaultSocket);
}

Outcome<void> run_words(const std::vector<std::string>& words) {
  auto invocation = parse_arguments(words);
  if (!invocation) return tl::unexpected(invocation.error());
  const Verb* verb = invocation->verb;
  const bool help = invocation->has("help");
  Client client(socket_path(*invocation));
  Context context(std::move(*invocation), std::move(client));
  if (help) return context.print_text(verb == nullptr ? overview() : help_text(*verb));
  return verb->run(context);
}

/// A standard stream that is closed would leave its number to the next socket, which would get what is
/// printed.
void hold_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0)  // opened for what it is not used for: reading and writing stay errors
      (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int report(const Failure& failure) {
  if (!failure.silent)
    (void)write_all(STDERR_FILENO,
                    "okcvm: " + visible(failure.code) + ": " + visible(failure.message, true) + "\n",
                    "standard error");
  return failure.status;
}

}  // namespace

int main(int argc, char** argv) try {
  hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that goes away is an error of write(2), not our end
  std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (words.size() == 1 && (words[0] == "--version" || words[0] == "-V")) words = {"version"};
  const auto done = run_words(words);
  return done ? kDone : report(done.error());
} catch (const std::exception& error) {
  return report({"internal", error.what()});
}
