#include "fusefs/caller_rights.h"

#include <unistd.h>

namespace okcvm::fusefs {

Request request_of(const Caller& caller) {
  Request request;
  request.uid = caller.uid;
  request.gid = caller.gid;
  request.kill_privileges = caller.uid != 0;
  return request;
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
