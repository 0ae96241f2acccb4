#include "fusefs/files.h"

#include <algorithm>

#include "fusefs/session_mount.h"
#include "policy/file_kind.h"
#include "tools/daemon/http/uri.h"
#include "tools/daemon/routes/conditions.h"
#include "tools/daemon/routes/fields.h"
#include "tools/daemon/routes/file_sink.h"
#include "tools/daemon/routes/handlers.h"
#include "tools/daemon/routes/views.h"

namespace okcvm::daemon::routes {
namespace {

constexpr mode_t kDirectoryMode = 0755;
constexpr std::size_t kMostEntries = 10'000;  // of one answer, which is held in memory

std::string_view path_text(const Exchange& exchange) {
  const auto found = exchange.request.captures.find("path");
  return found == exchange.request.captures.end() ? std::string_view() : found->second;
}

Result<RelPath> path_of(const Exchange& exchange) {
  return RelPath::parse(path_text(exchange));
}

/// As open(2) and unlink(2) say of a file whose name ends with a slash.
Result<void> fits_slash(const Exchange& exchange, const fusefs::FileInfo& there) {
  if (!path_text(exchange).ends_with('/') || there.type == fusefs::FileType::kDirectory) return {};
  return fail_errno(ENOTDIR, "the path ends with a slash", std::string(path_text(exchange)));
}

Json entry_view(fusefs::Files& files, const Caller& caller, const RelPath& path,
                const fusefs::FileInfo& info) {
  std::optional<std::string> target;
  if (info.type == fusefs::FileType::kSymlink)
    if (auto text = files.read_link(caller, path)) target = std::move(*text);
  return view_of_entry(path, info, target);
}

Result<Response> list_directory(fusefs::Files& files, const Caller& caller, const RelPath& path,
                                const std::string& after, std::size_t limit) {
  auto listing = files.list(caller, path, after, limit);
  if (!listing) return fail(listing.error());
  Json entries = Json::array();
  std::size_t texts = 0;
  for (const auto& info : listing->entries) {
    auto name = Name::parse(info.name);
    if (!name) continue;
    if (texts >= kMostTexts) {
      listing->truncated = true;
      break;
    }
    entries.push_back(entry_view(files, caller, path / *name, info));
    texts += size_of_texts(entries.back());
  }
  return json_response(
      {{"path", path.text()}, {"entries", std::move(entries)}, {"truncated", listing->truncated}});
}

Result<Response> send_file(const Request& request, const RelPath& path, fusefs::OpenedFile file) {
  const fusefs::FileInfo& info = file.info;
  Response response;
  const auto tag = etag_of(info);
  const Conditions conditions(request);
  response.headers = {{"ETag", tag},
                      {"Last-Modified", http_date(info.modified)},
                      {"Accept-Ranges", "bytes"},
                      {"X-Content-Type-Options", "nosniff"}};
  response.content_type = content_type_of(path.leaf());
  if (auto met = conditions.check({&info}); !met) return fail(met.error());
  if (conditions.is_known(info)) {
    response.status = 304;
    return response;
  }
  FileBody body{std::move(file.file), 0, info.size};
  // A client that has a part of another version gets the whole (RFC 9110, 13.1.5).
  const auto known_part = request.header("if-range");
  const bool is_same = known_part.empty() || known_part == tag;
  if (const auto header = request.header("range"); !header.empty() && is_same && !request.is_head) {
    auto range = parse_range(header, info.size);
    if (!range) {
      response = error_response(range.error(), request, 416);
      response.headers.emplace_back("Content-Range", "bytes */" + std::to_string(info.size));
      return response;
    }
    if (*range) {
      body.offset = (*range)->offset;
      body.size = (*range)->size;
      response.status = 206;
      response.headers.emplace_back("Content-Range", "bytes " + std::to_string(body.offset) + "-" +
                                                         std::to_string(body.offset + body.size - 1) + "/" +
                                                         std::to_string(info.size));
    }
  }
  response.body = std::move(body);
  return response;
}

/// A request's conditions as a check at the moment of the change; none if nothing is asked for. Listings tell
/// a link's own tag, its GET that of what it leads to.
fusefs::EntryCheck condition_of(const Request& request) {
  const Conditions conditions(request);
  if (conditions.are_none()) return nullptr;
  return [conditions](const fusefs::FileInfo* there, const fusefs::FileInfo* target) {
    return conditions.check_change({there, target});
  };
}

/// Takes a body that must be empty and then makes a directory.
class DirectorySink final : public BodySink {
 public:
  DirectorySink(const Exchange& exchange, RelPath path, mode_t mode)
      : session_(exchange.session),
        caller_(exchange.request.peer.caller()),
        path_(std::move(path)),
        mode_(mode),
        check_(condition_of(exchange.request)) {}

  Result<void> write(std::string_view) override {
    return fail(Code::kInvalidRequest, "a directory takes no body", path_.text());
  }
  Result<Response> finish() override {
    const auto pass = session_->gate().share();
    if (!pass) return fail(pass.error());
    auto mount = session_->need_mount();
    if (!mount) return fail(mount.error());
    const auto is_new = (*mount)->files().make_directories(caller_, path_, mode_, check_);
    if (!is_new) return fail(is_new.error());
    Json view{{"path", path_.text()}};
    if (const auto made = (*mount)->files().stat(caller_, path_, true)) view["etag"] = etag_of(*made);
    view["created"] = *is_new;
    add_encoded_path(view, path_);
    return json_response(view, *is_new ? 201 : 200);
  }

 private:
  const SessionPointer session_;
  const Caller caller_;
  const RelPath path_;
  const mode_t mode_;
  const fusefs::EntryCheck check_;
};

}  // namespace

Result<Response> get_file(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const bool only_stat = query.flag("stat");
  const auto limit = query.limit(kMostEntries);
  const auto after = query.text("after").value_or("");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  auto path = path_of(exchange);
  if (!path) return fail(path.error());
  const auto caller = exchange.request.peer.caller();
  {
    const auto pass = exchange.session->gate().share();
    if (!pass) return fail(pass.error());
    auto mount = exchange.session->need_mount();
    if (!mount) return fail(mount.error());
    auto& files = (*mount)->files();
    auto info = files.stat(caller, *path, !only_stat);
    if (!info) return fail(info.error());
    if (auto fits = fits_slash(exchange, *info); !fits) return fail(fits.error());
    if (only_stat) return json_response(entry_view(files, caller, *path, *info));
    if (info->type != fusefs::FileType::kDirectory) {
      auto file = files.open(caller, *path);
      if (!file) return fail(file.error());
      return send_file(exchange.request, *path, std::move(*file));
    }
  }
  if (auto turn = exchange.take_turn(exchange.service.listings); !turn) return fail(turn.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto mount = exchange.session->need_mount();
  if (!mount) return fail(mount.error());
  return list_directory((*mount)->files(), caller, *path, after, limit);
}

Result<Response> delete_file(Exchange& exchange) {
  QueryFields query(exchange.request.query);
  const bool recursive = query.flag("recursive");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  auto path = path_of(exchange);
  if (!path) return fail(path.error());
  if (recursive)  // whole directories are held in memory
    if (auto turn = exchange.take_turn(exchange.service.listings); !turn) return fail(turn.error());
  const auto pass = exchange.session->gate().share();
  if (!pass) return fail(pass.error());
  auto mount = exchange.session->need_mount();
  if (!mount) return fail(mount.error());
  auto& files = (*mount)->files();
  const auto caller = exchange.request.peer.caller();
  auto check = condition_of(exchange.request);
  if (path_text(exchange).ends_with('/'))
    check = [&exchange, condition = std::move(check)](const auto* there, const auto* target) -> Result<void> {
      if (auto fits = there ? fits_slash(exchange, *there) : Result<void>(); !fits) return fits;
      return condition ? condition(there, target) : Result<void>();
    };
  if (auto removed = files.remove(caller, *path, recursive, check, exchange.request.goes_on()); !removed)
    return fail(removed.error());
  Json view{{"path", path->text()}, {"deleted", true}};
  add_encoded_path(view, *path);
  return json_response(view);
}

Result<std::unique_ptr<BodySink>> put_file(Exchange& exchange) {
  if (auto whole = check_body_kind(exchange.request); !whole) return fail(whole.error());
  QueryFields query(exchange.request.query);
  const auto mode_field = query.text("mode");
  const bool is_directory = query.flag("directory");
  if (auto ended = query.end(); !ended) return fail(ended.error());
  const auto mode = mode_field ? parse_mode(*mode_field) : std::nullopt;
  if (mode_field && !mode) return fail(Code::kInvalidRequest, "mode: octal digits up to 0777 are needed");
  auto path = path_of(exchange);
  if (!path) return fail(path.error());
  const auto caller = exchange.request.peer.caller();
  if (is_directory) return std::make_unique<DirectorySink>(exchange, *path, mode.value_or(kDirectoryMode));
  if (path_text(exchange).ends_with('/'))
    return fail(Code::kInvalidRequest,
                "a file's name cannot end with a slash; to make a directory, use ?directory=true",
                std::string(path_text(exchange)));

  const auto existed = std::make_shared<bool>(false);
  FileSinkRequest request{exchange.session, caller, *path, mode, fusefs::IfExists::kReplace, 0, {}, {}};
  request.check = [existed, condition = condition_of(exchange.request)](const auto* there,
                                                                        const auto* target) {
    *existed = there != nullptr;
    return condition ? condition(there, target) : Result<void>();
  };
  request.most = exchange.service.max_upload_bytes;
  request.finished = [existed](const WrittenFile& file) {
    Json view{{"path", file.path.text()},
              {"size", file.info.size},
              {"etag", etag_of(file.info)},
              {"created", !*existed}};
    add_encoded_path(view, file.path);
    return json_response(view, *existed ? 200 : 201);
  };
  return open_file_sink(std::move(request), exchange.request.body_size);
}

}  // namespace okcvm::daemon::routes
