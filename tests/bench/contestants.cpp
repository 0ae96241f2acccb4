#include "tests/bench/contestants.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "policy/file_descriptor.h"
#include "tests/support/process.h"

namespace okcvm::bench {
namespace fs = std::filesystem;
namespace {

class Native final : public Contestant {
 public:
  explicit Native(const fs::path& top) : directory_(top / "native") { fs::create_directory(directory_); }
  std::string name() const override { return "native"; }
  fs::path directory() const override { return directory_; }

 private:
  fs::path directory_;
};

/// A FUSE program that mounts, goes to the background, and ends when it is unmounted.
class Peer final : public Contestant {
 public:
  Peer(std::string name, const fs::path& top, const std::string& script)
      : name_(std::move(name)), top_(top / name_) {
    for (const char* made : {"lower", "upper", "work", "mnt"}) fs::create_directories(top_ / made);
    const auto result = test::run_script(script, top_);
    if (result.exit_code != 0) throw std::runtime_error(name_ + ": " + result.output);
    fs::create_directory(directory());
  }
  ~Peer() override { ::umount2((top_ / "mnt").c_str(), MNT_DETACH); }
  std::string name() const override { return name_; }
  fs::path directory() const override { return top_ / "mnt" / "work"; }

 private:
  std::string name_;
  fs::path top_;
};

/// A session mounted by bench_session, which is asked over its standard input.
class Okcvm final : public Contestant {
 public:
  explicit Okcvm(const ContestantOptions& options) {
    std::array<int, 2> in{}, out{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0)
      throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      const auto program = (options.programs / "bench_session").string();
      ::setenv("OKCVM_TEST_DIR", options.top.c_str(), 1);
      ::execl(program.c_str(), program.c_str(), options.passthrough.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    questions_ = FileDescriptor(in[1]);
    answers_.reset(::fdopen(out[0], "r"));
    const auto mount = line();
    if (mount.empty()) throw std::runtime_error("bench_session cannot mount");
    directory_ = fs::path(mount) / "outputs" / "work";
    fs::create_directory(directory_);
  }
  ~Okcvm() override {
    questions_.reset();
    ::waitpid(pid_, nullptr, 0);
  }

  std::string name() const override { return "okcvm"; }
  fs::path directory() const override { return directory_; }
  std::map<std::string, std::uint64_t> requests() override {
    std::map<std::string, std::uint64_t> counts;
    if (::write(questions_.get(), "counts\n", 7) != 7) return counts;
    std::istringstream words(line());
    std::string opcode;
    for (std::uint64_t count = 0; words >> opcode >> count;) counts[opcode] = count;
    return counts;
  }

 private:
  std::string line() {
    std::array<char, 8192> text{};
    if (!std::fgets(text.data(), text.size(), answers_.get())) return {};
    std::string read = text.data();
    while (!read.empty() && read.back() == '\n') read.pop_back();
    return read;
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  pid_t pid_ = -1;
  FileDescriptor questions_;
  std::unique_ptr<std::FILE, Close> answers_;
  fs::path directory_;
};

}  // namespace

std::vector<std::unique_ptr<Contestant>> make_contestants(const ContestantOptions& options) {
  const auto chosen = [&](const char* name) {
    return options.names.empty() ||
           std::find(options.names.begin(), options.names.end(), name) != options.names.end();
  };
  std::vector<std::unique_ptr<Contestant>> made;
  made.push_back(std::make_unique<Native>(options.top));
  if (chosen("okcvm")) made.push_back(std::make_unique<Okcvm>(options));
  if (chosen("bindfs") && test::have_program("bindfs"))
    made.push_back(std::make_unique<Peer>("bindfs", options.top, "bindfs upper mnt"));
  if (chosen("fuse-overlayfs") && test::have_program("fuse-overlayfs"))
    made.push_back(std::make_unique<Peer>(
        "fuse-overlayfs", options.top, "fuse-overlayfs -o lowerdir=lower,upperdir=upper,workdir=work mnt"));
  return made;
}

}  // namespace okcvm::bench
