#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fusefs/files.h"
#include "snapshots/store.h"
#include "tools/daemon/http/message.h"
#include "tools/daemon/routes/service.h"
#include "tools/daemon/sessions/sessions.h"

/// How things look in JSON. Text that is not UTF-8 is shown with U+FFFD in place of what cannot be.
namespace okcvm::daemon {

using Json = nlohmann::ordered_json;

/// Bytes of texts in the rows of one answer, which is held in memory: there it ends.
inline constexpr std::size_t kMostTexts = 4 << 20;
/// Of an object's names and texts.
std::size_t size_of_texts(const Json& row);

/// Adds `encoded_path` where JSON cannot tell a path byte by byte: percent-encoded, for a request's target.
void add_encoded_path(Json& view, const RelPath& path, const char* name = "encoded_path");

Response json_response(const Json& value, int status = 200);

/// "file", "directory", "symlink" or "other".
std::string_view type_name(fusefs::FileType type);

/// Whether a mount goes on without this daemon: the kernel can have the next one take it over, and somebody
/// keeps it until then.
bool survives(const Service& service, const fusefs::MountStatistics& mount);
/// With `counters`, also how its mount is being used.
Json view_of_session(const Service& service, const Session& session, bool counters = false);
Json view_of_snapshot(const snapshots::Snapshot& snapshot);
/// Adds to `view` the first of some texts under a name, and as `<name>_total` how many there are in all.
void add_notes(Json& view, const char* name, const std::vector<std::string>& notes);
/// Adds to `view` the first rows under a name, as many as an answer may hold; how many there are in all; and
/// whether some are left out.
void add_differences(Json& view, const char* name, const std::vector<snapshots::Difference>& differences);
Json view_of_restore(bool dry_run, const snapshots::RestoreResult& result);
/// Of a file, directory or link at `path`; `target` only of links.
Json view_of_entry(const RelPath& path, const fusefs::FileInfo& info,
                   const std::optional<std::string>& target);
/// Of the inode, the size, and the times of its modification and change (nanoseconds), quoted. It misses what
/// is stored through a mapping where that moves no time: into a page that is dirty already; and two writes in
/// one tick of the file system's clock. Whatever else moves the time of the change (chmod, link, rename)
/// counts.
std::string etag_of(const fusefs::FileInfo& info);

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace okcvm::daemon
