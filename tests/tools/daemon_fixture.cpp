#include "tests/tools/daemon_fixture.h"

#include <grp.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "tests/support/process.h"

namespace okcvm::test {
namespace {

constexpr int kSeconds = 30;

}  // namespace

// There is no handle to wait on for what other processes do.
bool DaemonFixture::comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kSeconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::size_t DaemonFixture::count_in_proc(pid_t process, const char* folder) {
  const std::filesystem::directory_iterator entries("/proc/" + std::to_string(process) + "/" + folder);
  return static_cast<std::size_t>(std::distance(entries, std::filesystem::directory_iterator()));
}

void DaemonFixture::SetUp() {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "there is no usable /dev/fuse";
  char name[] = "/tmp/okcvmd-test-XXXXXX";
  root_ = ::mkdtemp(name);
  std::filesystem::permissions(root_, std::filesystem::perms(0755));
  for (const char* folder : {"mnt", "skills"}) std::filesystem::create_directory(root_ / folder);
}

void DaemonFixture::TearDown() {
  if (root_.empty()) return;
  if (child_ > 0) stop();
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(root_ / "mnt", ignored))
    ::umount2(entry.path().c_str(), MNT_DETACH);
  if (HasFailure()) std::fprintf(stderr, "%s", log().c_str());
  std::filesystem::remove_all(root_, ignored);
}

pid_t DaemonFixture::launch(const std::vector<std::string>& options) {
  std::vector<std::string> arguments{OKCVMD_PROGRAM};
  for (const auto& [name, folder] : {std::pair("--state-dir", "state"), std::pair("--run-dir", "run"),
                                     std::pair("--mount-root", "mnt"), std::pair("--skills-dir", "skills")})
    if (std::find(options.begin(), options.end(), name) == options.end())
      arguments.insert(arguments.end(), {name, root_ / folder});
  arguments.insert(arguments.end(), options.begin(), options.end());
  return start_program(std::move(arguments), root_ / "log");
}

void DaemonFixture::start(const std::vector<std::string>& options) {
  child_ = launch(options);
  ASSERT_TRUE(comes_true([&] { return HttpClient(socket()).ask("GET", "/v1/health").status == 200; }))
      << log();
  ::chmod(socket().c_str(), 0666);  // so that tests can come as other users
}

std::pair<int, std::string> DaemonFixture::start_in_vain(const std::vector<std::string>& options) {
  const auto before = log().size();
  const pid_t child = launch(options);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, log().substr(before)};
}

void DaemonFixture::signal(int number) {
  ::kill(child_, number);
}

int DaemonFixture::wait_for_end() {
  int status = 0;
  const bool ended = comes_true([&] { return ::waitpid(child_, &status, WNOHANG) == child_; });
  if (!ended) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, &status, 0);
  }
  child_ = -1;
  return ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int DaemonFixture::stop() {
  signal(SIGTERM);
  return wait_for_end();
}

pid_t DaemonFixture::serving_pid() {
  return ask("GET", "/v1/health").json().value("pid", -1);
}

void DaemonFixture::kill_daemon() {
  const pid_t daemon = serving_pid();
  ASSERT_GT(daemon, 1);
  ::kill(daemon, SIGKILL);
  if (daemon == child_) wait_for_end();
}

HttpAnswer DaemonFixture::ask(const std::string& method, const std::string& target, const std::string& body,
                              const std::map<std::string, std::string>& headers) {
  return HttpClient(socket()).ask(method, target, body, headers);
}

HttpClient DaemonFixture::connect_as(uid_t uid) {
  // The kernel notes who connects at that moment (SO_PEERCRED).
  if (::setgroups(0, nullptr) != 0 || ::setegid(uid) != 0 || ::seteuid(uid) != 0)
    ADD_FAILURE() << "cannot change users";
  HttpClient client(socket());
  if (::seteuid(0) != 0 || ::setegid(0) != 0) std::abort();
  return client;
}

HttpAnswer DaemonFixture::ask_as(uid_t uid, const std::string& method, const std::string& target,
                                 const std::string& body) {
  return connect_as(uid).ask(method, target, body);
}

nlohmann::json DaemonFixture::create(const nlohmann::json& request) {
  const auto answer = ask("POST", "/v1/sessions", request.dump());
  EXPECT_EQ(answer.status, 201) << answer.body;
  return answer.json();
}

void DaemonFixture::add_skill(const std::string& name, const std::string& text) {
  std::filesystem::create_directories(root_ / "skills" / name);
  write(root_ / "skills" / name / "SKILL.md", text);
}

std::string DaemonFixture::log() const {
  return read(root_ / "log");
}

std::string DaemonFixture::read(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

void DaemonFixture::write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  EXPECT_TRUE(out) << file;
}

void DaemonWithSession::SetUp() {
  DaemonFixture::SetUp();
  if (IsSkipped()) return;
  start();
  create({{"id", "s1"}});
}

}  // namespace okcvm::test
