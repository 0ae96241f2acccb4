#include "fusefs/caller_rights.h"

#include <linux/capability.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace okcvm::fusefs {
namespace {

/// What a line of /proc/<pid>/status (proc(5)) says; empty when the process is gone.
std::string status_of(pid_t pid, std::string_view name) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name)) return line.substr(name.size());
  return {};
}

/// Whether a line of /proc/<pid>/uid_map or gid_map (user_namespaces(7)) has this number of ours.
bool is_mapped(pid_t pid, const char* map, std::uint32_t number) {
  std::ifstream ranges("/proc/" + std::to_string(pid) + "/" + map);
  for (std::uint64_t inside, outside, count; ranges >> inside >> outside >> count;)
    if (number >= outside && number - outside < count) return true;
  return false;
}

/// Whether a process is in the user namespace of the daemon, or one in which all numbers are the same. (Which
/// namespace it is only who may trace the process is told.)
bool has_our_users(pid_t pid) {
  const auto map_of = [](const std::string& process) {
    std::ostringstream map;
    map << std::ifstream("/proc/" + process + "/uid_map").rdbuf();
    return map.str();
  };
  const auto theirs = map_of(std::to_string(pid));
  return !theirs.empty() && theirs == map_of("self");
}

/// Of a line of /proc/<pid>/status.
bool has(const std::string& capabilities, int capability) {
  return std::strtoull(capabilities.c_str(), nullptr, 16) >> capability & 1;
}

/// What of an inode's owners has to belong to the container.
enum class Belonging : std::uint8_t { kUser, kUserAndGroup };

/// Root, or root of a container over what belongs to it.
bool is_capable_over(const Request& request, const struct stat& inode, int capability, Belonging belonging) {
  const auto effective = status_of(request.pid, "CapEff:");
  if (effective.empty()) return request.uid == 0;
  return has(effective, capability) && is_mapped(request.pid, "uid_map", inode.st_uid) &&
         (belonging == Belonging::kUser || is_mapped(request.pid, "gid_map", inode.st_gid));
}

}  // namespace

Request request_of(const Caller& caller) {
  Request request;
  request.uid = caller.uid;
  request.gid = caller.gid;
  request.kill_privileges = caller.uid != 0;
  return request;
}

bool is_in_group(const Request& request, gid_t gid) {
  if (request.gid == gid) return true;
  std::istringstream groups(status_of(request.pid, "Groups:"));
  for (gid_t group; groups >> group;)
    if (group == gid) return true;
  return false;
}

bool is_capable(const Request& request, int capability) {
  const auto effective = status_of(request.pid, "CapEff:");
  if (effective.empty()) return request.uid == 0;
  return has(effective, capability) && has_our_users(request.pid);
}

bool may_set_group_id(const Request& request, const struct stat& inode) {
  return is_in_group(request, inode.st_gid) || is_capable_over(request, inode, CAP_FSETID);
}

bool is_capable_over(const Request& request, const struct stat& inode, int capability) {
  return is_capable_over(request, inode, capability, Belonging::kUserAndGroup);
}

bool may_change_mode(const Request& request, const struct stat& inode) {
  return request.uid == inode.st_uid || is_capable_over(request, inode, CAP_FOWNER, Belonging::kUser);
}

bool may_access(const Request& request, const struct stat& inode, mode_t wanted) {
  const int shift = request.uid == inode.st_uid ? 6 : is_in_group(request, inode.st_gid) ? 3 : 0;
  if ((inode.st_mode >> shift & wanted) == wanted) return true;
  const mode_t reads = S_ISDIR(inode.st_mode) ? S_IROTH | S_IXOTH : S_IROTH;
  return is_capable_over(request, inode, CAP_DAC_OVERRIDE) ||
         ((wanted & ~reads) == 0 && is_capable_over(request, inode, CAP_DAC_READ_SEARCH));
}

bool may_remove(const Caller& caller, const struct stat& directory, const struct stat& entry) {
  if (!may(caller, directory, W_OK | X_OK)) return false;
  return !(directory.st_mode & S_ISVTX) || caller.uid == 0 || caller.uid == directory.st_uid ||
         caller.uid == entry.st_uid;
}

Unexpected explained(const Error& error, std::string_view path) {
  Error told = error;
  if (told.message.empty() && told.errno_value == EROFS)  // no rule of ours
    told.message = "the file system that holds the session is read-only; the host's log says why";
  if (told.message.empty()) told.message = Error::from_errno(error.errno_value, "the request failed").message;
  if (told.path.empty()) told.path = path;
  return fail(std::move(told));
}

}  // namespace okcvm::fusefs
