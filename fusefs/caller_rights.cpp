#include "fusefs/caller_rights.h"

#include <unistd.h>

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

bool has_capability(const Request& request, int capability) {
  if (request.uid != 0) return false;
  const auto effective = status_of(request.pid, "CapEff:");
  return effective.empty() || (std::strtoull(effective.c_str(), nullptr, 16) >> capability & 1);
}

bool may_remove(const Caller& caller, const struct stat& directory, const struct stat& entry) {
  if (!may(caller, directory, W_OK | X_OK)) return false;
  return !(directory.st_mode & S_ISVTX) || caller.uid == 0 || caller.uid == directory.st_uid ||
         caller.uid == entry.st_uid;
}

Unexpected explained(const Error& error, const RelPath& path) {
  Error told = error;
  if (told.message.empty() && told.errno_value == EROFS)  // no rule of ours
    told.message = "the file system that holds the session is read-only; the host's log says why";
  if (told.message.empty()) told.message = Error::from_errno(error.errno_value, "the request failed").message;
  if (told.path.empty()) told.path = path.text();
  return fail(std::move(told));
}

}  // namespace okcvm::fusefs
