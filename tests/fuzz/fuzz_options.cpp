#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sstream>
#include <string>
#include <vector>

#include "policy/file_descriptor.h"
#include "tests/fuzz/expect.h"
#include "tools/daemon/host/options.h"

/// okcvmd's command line, environment and INI file.
namespace {

using namespace okcvm;
using namespace okcvm::daemon;

/// The pieces of a text between line ends; an argument cannot hold a NUL byte.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line.substr(0, line.find('\0')));
  return lines;
}

std::vector<const char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const auto& text : texts) pointers.push_back(text.c_str());
  pointers.push_back(nullptr);
  return pointers;
}

void check(const Options& options) {
  for (const auto& path :
       {options.config, options.state_dir, options.run_dir, options.mount_root, options.socket})
    FUZZ_EXPECT(path.is_absolute());
  for (const auto& path : options.skills_dirs) FUZZ_EXPECT(path.is_absolute());
  for (const auto& path : options.symlink_host_roots) FUZZ_EXPECT(path.starts_with('/'));
  for (const auto& path : options.workdir_allow_roots) FUZZ_EXPECT(path.starts_with('/'));
  FUZZ_EXPECT(!options.skills_dirs.empty());
  FUZZ_EXPECT(options.max_connections > 0 && options.max_sessions > 0 && options.max_upload_bytes > 0);
  FUZZ_EXPECT(options.session_ttl_days >= 0 && options.idle_seconds > 0);
  FUZZ_EXPECT(options.origins.size() == option_table().size());
  std::ostringstream shown;
  print_config(options, shown);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider provider(data, size);
  auto arguments = lines_of(provider.ConsumeRandomLengthString(256));
  auto environment = lines_of(provider.ConsumeRandomLengthString(256));
  const auto file_text = provider.ConsumeRemainingBytesAsString();

  const FileDescriptor file(::memfd_create("okcvmd.conf", MFD_CLOEXEC));
  FUZZ_EXPECT(::write(file.get(), file_text.data(), file_text.size()) ==
              static_cast<ssize_t>(file_text.size()));
  arguments.insert(arguments.begin(), "okcvmd");
  arguments.emplace_back("--config=/proc/self/fd/" + std::to_string(file.get()));

  const auto argv = pointers_to(arguments);
  const auto envp = pointers_to(environment);
  const auto options = read_options(static_cast<int>(arguments.size()), argv.data(), envp.data());
  if (options)
    check(*options);
  else
    FUZZ_EXPECT(!options.error().message.empty());
  return 0;
}
