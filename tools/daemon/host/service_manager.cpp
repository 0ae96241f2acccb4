#include "tools/daemon/host/service_manager.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "tools/daemon/host/keeper.h"
#include "tools/daemon/host/log.h"

namespace okcvm::daemon {
namespace {

constexpr std::string_view kDevicePrefix = "okcvm-";
constexpr const char* kControlName = "control";
constexpr std::uint64_t kBarrierMicroseconds = 2'000'000;
constexpr std::chrono::seconds kLongestReload{5};
constexpr const char* kSystemd = "org.freedesktop.systemd1";
constexpr const char* kSystemdPath = "/org/freedesktop/systemd1";
constexpr std::string_view kSystemdSocket = "/run/systemd/notify";
constexpr const char* kSystemdManager = "org.freedesktop.systemd1.Manager";

/// A connection to the system's bus; null if there is none.
using Bus = std::unique_ptr<sd_bus, decltype(&::sd_bus_flush_close_unref)>;
Bus system_bus() {
  sd_bus* bus = nullptr;
  if (::sd_bus_open_system(&bus) < 0) bus = nullptr;
  return {bus, ::sd_bus_flush_close_unref};
}

void keep(const std::string& name, int descriptor) {
  const auto message = "FDSTORE=1\nFDNAME=" + name;
  const int sent = ::sd_pid_notify_with_fds(0, 0, message.c_str(), &descriptor, 1);
  if (sent < 0) log_warning("descriptor {} cannot be given into keeping: errno {}", name, -sent);
}

void forget(const std::string& name) {
  ::sd_notify(0, ("FDSTOREREMOVE=1\nFDNAME=" + name).c_str());
  ::sd_notify_barrier(0, kBarrierMicroseconds);
}

std::string bound_path(int socket) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      size <= offsetof(sockaddr_un, sun_path) || address.sun_path[0] == '\0')
    return {};
  return std::string(address.sun_path, ::strnlen(address.sun_path, size - offsetof(sockaddr_un, sun_path)));
}

/// The object of this unit; empty if it cannot be told.
std::string unit_path(sd_bus* bus) {
  sd_bus_message* reply = nullptr;
  const char* path = nullptr;
  std::string result;
  if (::sd_bus_call_method(bus, kSystemd, kSystemdPath, kSystemdManager, "GetUnitByPID", nullptr, &reply, "u",
                           static_cast<std::uint32_t>(::getpid())) >= 0 &&
      ::sd_bus_message_read(reply, "o", &path) >= 0)
    result = path;
  ::sd_bus_message_unref(reply);
  return result;
}

/// What systemd is doing with this unit ("reload"); empty if it is nothing, or cannot be told.
std::string job_type(sd_bus* bus) {
  const auto path = unit_path(bus);
  sd_bus_message* job = nullptr;
  std::uint32_t number = 0;
  const char* job_path = nullptr;
  std::string type;
  if (::sd_bus_get_property(bus, kSystemd, path.c_str(), "org.freedesktop.systemd1.Unit", "Job", nullptr,
                            &job, "(uo)") >= 0 &&
      ::sd_bus_message_read(job, "(uo)", &number, &job_path) >= 0 && number != 0) {
    char* text = nullptr;
    if (::sd_bus_get_property_string(bus, kSystemd, job_path, "org.freedesktop.systemd1.Job", "JobType",
                                     nullptr, &text) >= 0)
      type = text;
    std::free(text);
  }
  ::sd_bus_message_unref(job);
  return type;
}

/// Whether systemd, listening at this socket, keeps descriptors of the unit; whom the bus knows nothing of is
/// believed to.
bool keeps_descriptors(std::string_view notify_socket) {
  const Bus bus = notify_socket == kSystemdSocket ? system_bus() : Bus(nullptr, ::sd_bus_flush_close_unref);
  if (!bus) return true;
  std::uint32_t most = 0;
  return ::sd_bus_get_property_trivial(bus.get(), kSystemd, unit_path(bus.get()).c_str(),
                                       "org.freedesktop.systemd1.Service", "FileDescriptorStoreMax", nullptr,
                                       'u', &most) < 0 ||
         most > 0;
}

/// Whether it is /dev/fuse, of a mount that is not over (linux/major.h, linux/miscdevice.h).
bool is_mounts_device(int descriptor) {
  struct stat status {};
  pollfd state{descriptor, POLLIN, 0};
  return ::fstat(descriptor, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(10, 229) &&
         ::poll(&state, 1, 0) >= 0 && !(state.revents & POLLERR);
}

}  // namespace

ServiceManager::ServiceManager() {
  const char* socket = std::getenv("NOTIFY_SOCKET");
  if (!socket) return;
  if (const char* keeper = std::getenv(kKeeperVariable))
    keeper_ = static_cast<pid_t>(std::strtol(keeper, nullptr, 10));
  else if (std::string_view(socket).starts_with(kFormerKeeperPrefix))
    keeper_ = ::getppid();
  if (keeper_ != 0)
    kept_by_ = "keeper";
  else if (::sd_notify(0, "STATUS=starting") > 0 && keeps_descriptors(socket))
    kept_by_ = "systemd";
}

bool ServiceManager::is_there() const {
  return !kept_by_.empty() && (kept_by_ != "keeper" || ::getppid() == keeper_);
}

Inherited ServiceManager::take_inherited() {
  Inherited inherited;
  char** names = nullptr;
  const int count = ::sd_listen_fds_with_names(1, &names);
  for (int i = 0; i < count; ++i) {
    FileDescriptor descriptor(SD_LISTEN_FDS_START + i);
    const std::string_view name(names && names[i] ? names[i] : "");
    if (::sd_is_socket_unix(descriptor.get(), SOCK_STREAM, 1, nullptr, 0) > 0) {
      auto path = bound_path(descriptor.get());
      inherited.sockets.push_back({std::move(descriptor), std::move(path), name == kControlName});
    } else if (name.starts_with(kDevicePrefix)) {
      // The newest comes first. One of a mount that has ended may still be there, or what somebody else
      // stored.
      auto& device = inherited.devices[std::string(name.substr(kDevicePrefix.size()))];
      if (!device || (!is_mounts_device(device.get()) && is_mounts_device(descriptor.get())))
        device = std::move(descriptor);
    }
  }
  for (int i = 0; names && names[i]; ++i) std::free(names[i]);
  std::free(names);
  return inherited;
}

void ServiceManager::ready(const std::string& status) const {
  ::sd_notify(0, ("READY=1\nSTATUS=" + status).c_str());
}
void ServiceManager::stopping() const {
  ::sd_notify(0, "STOPPING=1");
}

std::optional<std::chrono::milliseconds> ServiceManager::watch_interval() const {
  std::uint64_t microseconds = 0;
  if (::sd_watchdog_enabled(0, &microseconds) <= 0) return std::nullopt;
  return std::chrono::milliseconds(std::max<std::uint64_t>(microseconds / 3000, 1));
}
void ServiceManager::keep_watch() const {
  ::sd_notify(0, "WATCHDOG=1");
}
void ServiceManager::end_within(std::chrono::microseconds most) const {
  ::sd_notify(0, ("WATCHDOG_USEC=" + std::to_string(most.count())).c_str());
}

void ServiceManager::keep_control(int socket) const {
  if (is_there()) keep(kControlName, socket);
}
void ServiceManager::forget_control() const {
  if (is_there()) forget(kControlName);
}
void ServiceManager::keep_device(const std::string& session, int device) const {
  if (is_there()) keep(std::string(kDevicePrefix) + session, device);
}
void ServiceManager::forget_device(const std::string& session) const {
  if (is_there()) forget(std::string(kDevicePrefix) + session);
}

bool ServiceManager::is_restarting() const {
  if (kept_by_ != "systemd") return false;
  const Bus bus = system_bus();
  const auto type = bus ? job_type(bus.get()) : std::string();
  return type == "restart" || type == "try-restart";
}

void ServiceManager::let_reload_end() const {
  if (kept_by_ != "systemd") return;
  const Bus bus = system_bus();
  if (!bus) return;
  // systemd tells of the end of jobs to those who asked for that; before the look, so that none is missed.
  if (::sd_bus_match_signal(bus.get(), nullptr, kSystemd, kSystemdPath, kSystemdManager, "JobRemoved",
                            nullptr, nullptr) < 0 ||
      ::sd_bus_call_method(bus.get(), kSystemd, kSystemdPath, kSystemdManager, "Subscribe", nullptr, nullptr,
                           nullptr) < 0)
    return;
  const auto until = std::chrono::steady_clock::now() + kLongestReload;
  while (job_type(bus.get()) == "reload") {
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0 || ::sd_bus_wait(bus.get(), static_cast<std::uint64_t>(left.count())) <= 0) return;
    while (::sd_bus_process(bus.get(), nullptr) > 0) {
    }
  }
}

}  // namespace okcvm::daemon
