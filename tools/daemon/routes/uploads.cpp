#include <magic.h>

#include <memory>

#include "policy/file_kind.h"
#include "policy/thread_annotations.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/file_sink.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

constexpr mode_t kUploadMode = 0644;

/// libmagic's opinion of some bytes. Its handle is not thread-safe and takes long to make, so there is one.
/// Thread-safe.
class MagicTypes final {
 public:
  std::string type_of(std::string_view head) EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (!handle_) {
      handle_.reset(::magic_open(MAGIC_MIME_TYPE | MAGIC_ERROR));
      if (handle_ && ::magic_load(handle_.get(), nullptr) != 0) handle_.reset();
    }
    const char* type = handle_ ? ::magic_buffer(handle_.get(), head.data(), head.size()) : nullptr;
    return type ? type : "application/octet-stream";
  }

 private:
  struct Closer {
    void operator()(magic_t handle) const { ::magic_close(handle); }
  };
  Mutex mutex_;
  std::unique_ptr<std::remove_pointer_t<magic_t>, Closer> handle_ GUARDED_BY(mutex_);
};

MagicTypes& magic_types() {
  static MagicTypes types;
  return types;
}

}  // namespace

Result<std::unique_ptr<BodySink>> upload_file(Exchange& exchange) {
  if (auto whole = check_body_kind(exchange.request); !whole) return fail(whole.error());
  QueryFields query(exchange.request.query);
  const auto requested = query.text("name");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  if (!requested) return fail(Code::kInvalidRequest, "?name: it is missing");
  auto path = RelPath::parse("uploads/" + safe_upload_name(*requested));
  if (!path) return fail(path.error());

  FileSinkRequest request{exchange.session,          exchange.request.peer.caller(),    *path, kUploadMode,
                          fusefs::IfExists::kUnique, exchange.service.max_upload_bytes, {},    {}};
  request.finished = [&events = exchange.service.events, session = exchange.session,
                      requested = *requested](const WrittenFile& file) {
    const auto type = kind_of_file(file.path.leaf());
    events.publish("upload", session->id().text(), session->owner(),
                   {EventHub::text("path", file.path.text()),
                    EventHub::number("size", static_cast<std::int64_t>(file.info.size))});
    Json view{{"success", true},
              {"path", file.path.text()},
              {"name", file.path.leaf()},
              {"requested_name", requested},
              {"size", file.info.size},
              {"type", type},
              {"mime_type", magic_types().type_of(file.head)}};
    add_encoded_path(view, file.path);
    return json_response(view, 201);
  };
  return open_file_sink(std::move(request), exchange.request.body_size);
}

}  // namespace okcvm::daemon::routes
