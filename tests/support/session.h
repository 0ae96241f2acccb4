#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "fusefs/session_mount.h"
#include "tests/support/scratch.h"

namespace okcvm::test {

/// Why sessions cannot be mounted here (not root, no /dev/fuse); empty when they can.
std::string why_no_mounts();

/// $OKCVM_TEST_PASSTHROUGH: "off", or whatever the kernel offers.
fusefs::Passthrough chosen_passthrough();

/// Private state, run and mount directories for one session, and the configuration to mount it with. Its root
/// directory is root's with mode 0755, so that other users can be tried in it.
class SessionPlace {
 public:
  explicit SessionPlace(const std::string& id = "12ab34cd");
  ~SessionPlace();
  SessionPlace(const SessionPlace&) = delete;
  SessionPlace& operator=(const SessionPlace&) = delete;

  std::filesystem::path mount() const { return mount_point_; }
  std::filesystem::path uploads() const { return mount_point_ / "uploads"; }
  std::filesystem::path outputs() const { return mount_point_ / "outputs"; }
  std::filesystem::path temp() const { return mount_point_ / "temp"; }
  std::filesystem::path skills() const { return mount_point_ / "skills"; }

  /// The private directory of all that belongs to this session, on the same file system as its workspace.
  const std::filesystem::path& scratch() const { return scratch_.path(); }
  /// <state-dir>/workspaces/<id>: absent until something was written.
  std::filesystem::path workspace() const { return workspace_; }
  /// A plain directory (0777) on the backing file system, to compare with.
  std::filesystem::path plain() const { return scratch_ / "plain"; }

  /// Made anew at each call (a MountConfig cannot be copied).
  fusefs::MountConfig config() const;

  /// Makes a skill of these files (path below the skill, content) in the private registry.
  std::filesystem::path add_skill(const std::string& name, const std::map<std::string, std::string>& files);

 private:
  ScratchDirectory scratch_;
  std::string id_;
  std::filesystem::path mount_point_;
  std::filesystem::path workspace_;
};

/// A session mounted by this process, without a daemon. Throws std::runtime_error with the driver's message
/// when something cannot be done.
class Session final : public SessionPlace {
 public:
  using Adjust = std::function<void(fusefs::MountConfig&)>;

  explicit Session(const std::string& id = "12ab34cd", const Adjust& adjust = nullptr);

  fusefs::SessionMount& driver() { return *driver_; }
  fusefs::Files& files() { return driver_->files(); }
  /// Mounts again after unmount().
  void remount(const Adjust& adjust = nullptr);
  void unmount();
  /// Leaves the mount to this process's next driver, as an upgrade does.
  void hand_over(const Adjust& adjust = nullptr);
  /// Shows a skill that was added.
  void load_skill(const std::string& name);

 private:
  std::unique_ptr<fusefs::SessionMount> driver_;
};

/// A skill made of a host directory. Throws std::runtime_error.
fusefs::Skill skill_of(const std::filesystem::path& directory);

/// The value of a Result, or std::runtime_error with its message.
template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace okcvm::test
