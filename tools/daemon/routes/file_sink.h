#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fusefs/files.h"
#include "policy/error.h"
#include "policy/rel_path.h"
#include "tools/daemon/http/message.h"
#include "tools/daemon/sessions/session.h"

namespace okcvm::daemon::routes {

/// Refuses bodies that are no whole file as it is: a part of one, or a form around one.
Result<void> check_body_kind(const Request& request);

struct WrittenFile : fusefs::PublishedFile {
  std::string head;  // its first bytes, for telling its type
};

struct FileSinkRequest {
  SessionPointer session;
  Caller caller;
  RelPath path;
  std::optional<mode_t> mode;  // absent: see fusefs::Files::create
  fusefs::IfExists if_exists = fusefs::IfExists::kReplace;
  std::uint64_t most = 0;  // bytes
  fusefs::EntryCheck check;
  std::function<Response(const WrittenFile&)> finished;
};

/// A body on its way into a session's file. `quota_exceeded` beyond `most` bytes, at once if that many were
/// announced. No gate is held while the client sends; the session may be unmounted or deleted meanwhile, then
/// finish() says so.
Result<std::unique_ptr<BodySink>> open_file_sink(FileSinkRequest request,
                                                 std::optional<std::uint64_t> announced);

}  // namespace okcvm::daemon::routes
