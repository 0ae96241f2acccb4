#include "tests/support/session.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "tests/support/watchdog.h"

namespace okcvm::test {
namespace fs = std::filesystem;

std::string why_no_mounts() {
  if (::geteuid() != 0) return "mounting a session needs root";
  const FileDescriptor device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  return device ? "" : "mounting a session needs /dev/fuse";
}

fusefs::Passthrough chosen_passthrough() {
  const char* chosen = std::getenv("OKCVM_TEST_PASSTHROUGH");
  return chosen && std::string_view(chosen) == "off" ? fusefs::Passthrough::kOff : fusefs::Passthrough::kAuto;
}

fusefs::Skill skill_of(const fs::path& directory) {
  FileDescriptor opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) throw std::runtime_error("no such skill: " + directory.string());
  return {value_of(Name::parse(directory.filename().string())), std::move(opened)};
}

SessionPlace::SessionPlace(const std::string& id)
    : scratch_("session"),
      id_(id),
      mount_point_(scratch_ / "mnt" / ("okcvm-" + id)),
      workspace_(scratch_ / "state" / "workspaces" / id) {
  Watchdog::instance().guard(scratch_.path());
  for (const char* made : {"mnt", "run/sessions", "state/workspaces", "state/skills", "plain"})
    fs::create_directories(scratch_ / made);
  ::chmod(plain().c_str(), 0777);
}

SessionPlace::~SessionPlace() {
  end_mounts_below(scratch_.path());
}

fusefs::MountConfig SessionPlace::config() const {
  fusefs::MountConfig config{.id = value_of(SessionId::parse(id_)),
                             .mount_point = mount_point_,
                             .workspace = workspace_,
                             .runtime_dir = scratch_ / "run" / "sessions",
                             .symlink_host_roots = {},
                             .skills = {},
                             .workdir = {},
                             .metadata = {},
                             .on_denial = {}};
  config.root_mode = 0755;
  config.created_at = {1'700'000'000, 123'456'789};
  config.passthrough = chosen_passthrough();
  config.metadata = R"({"session_id":")" + id_ + "\"}\n";
  return config;
}

fs::path SessionPlace::add_skill(const std::string& name, const std::map<std::string, std::string>& files) {
  const fs::path top = scratch_ / "state" / "skills" / name;
  fs::create_directories(top);
  for (const auto& [relative, content] : files) {
    fs::create_directories((top / relative).parent_path());
    std::ofstream(top / relative) << content;
  }
  return top;
}

Session::Session(const std::string& id, const Adjust& adjust) : SessionPlace(id) {
  remount(adjust);
}

void Session::remount(const Adjust& adjust) {
  auto chosen = config();
  if (adjust) adjust(chosen);
  driver_ = value_of(fusefs::SessionMount::mount(std::move(chosen)));
  Watchdog::instance().note_mounts(scratch());
}

void Session::unmount() {
  value_of(driver_->unmount(true));
  driver_.reset();
}

void Session::hand_over(const Adjust& adjust) {
  auto chosen = config();
  if (adjust) adjust(chosen);
  FileDescriptor device(::fcntl(driver_->device(), F_DUPFD_CLOEXEC, 0));
  driver_->abandon();
  driver_.reset();
  driver_ = value_of(fusefs::SessionMount::take_over(std::move(chosen), std::move(device)));
}

void Session::load_skill(const std::string& name) {
  value_of(driver_->load_skill(skill_of(scratch() / "state" / "skills" / name)));
}

}  // namespace okcvm::test
