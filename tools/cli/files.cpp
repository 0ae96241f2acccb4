#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "policy/file_descriptor.h"
#include "policy/percent_encoding.h"
#include "policy/utf8.h"
#include "tools/cli/base64.h"
#include "tools/cli/handlers.h"
#include "tools/cli/text.h"

namespace okcvm::cli::run {

namespace {

constexpr std::size_t kLargestPrompt = std::size_t{1} << 20;  // of a JSON body, DESIGN section 4

std::string file_target(const Context& context, const std::string& path) {
  return context.session("/files/" + percent_encoded_path(path));
}

/// A host file, or standard input for "-", made ready to be a request's body.
Outcome<FileDescriptor> open_source(const std::string& file, Request& request) {
  FileDescriptor source;
  request.content_type = "application/octet-stream";
  request.source_name = file == "-" ? "standard input" : file;
  if (file == "-") {
    request.source = STDIN_FILENO;
  } else {
    source = FileDescriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!source) return system_failure(errno, file);
    request.source = source.get();
  }
  struct stat info {};
  if (::fstat(request.source, &info) != 0) return system_failure(errno, request.source_name);
  if (S_ISDIR(info.st_mode)) return system_failure(EISDIR, request.source_name);
  // A redirected file may have been read in part. What /proc and /sys have tells no size, or a wrong one.
  if (S_ISREG(info.st_mode) && info.st_blocks > 0) {
    const off_t at = ::lseek(request.source, 0, SEEK_CUR);
    if (at >= 0 && at <= info.st_size) request.source_size = static_cast<std::uint64_t>(info.st_size - at);
  }
  return source;
}

/// Sends a request whose body is a file or standard input.
Outcome<Json> send_file(const Context& context, Request request, const std::string& file) {
  auto source = open_source(file, request);
  if (!source) return tl::unexpected(source.error());
  ProgressLine line("sending " + request.source_name);
  const std::uint64_t total = request.source_size.value_or(0);
  request.sent = [&](std::uint64_t bytes) { line.show("", bytes, total, true); };
  return context.send(request);
}

std::string entry_line(const Json& entry) {
  const auto path = visible(text_in(entry, "path"));
  const auto type = text_in(entry, "type");
  if (flag_in(entry, "skill")) return "[SKILL] " + path + "/\n";
  if (type == "directory") return "[DIR]  " + path + "/\n";
  if (type == "file") return "[FILE] " + path + " (" + std::to_string(number_in(entry, "size")) + " bytes)\n";
  if (type != "symlink") return "[OTHER] " + path + "\n";
  const auto target = text_in(entry, "target");
  return "[LINK] " + path + (target.empty() ? " (leads out of the session)" : " -> " + visible(target)) +
         "\n";
}

/// An entry's name for a query. That of a name which is not text stands in its path alone.
std::string encoded_name(const Json& entry) {
  const auto path = text_in(entry, "encoded_path");
  if (path.empty()) return percent_encoded(text_in(entry, "name"));
  return path.substr(path.rfind('/') + 1);
}

Outcome<std::string> read_standard_input(std::size_t most) {
  std::string text;
  std::string piece(std::size_t{64} << 10, '\0');
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure(errno, "standard input");
    if (count == 0) return text;
    text.append(piece, 0, static_cast<std::size_t>(count));
    if (text.size() > most)
      return refuse("invalid_request", "standard input is longer than " + human_size(most));
  }
}

/// A file's bytes as JSON can carry them.
Json content_json(const std::string& path, const std::string& bytes) {
  Json answer{{"path", path}, {"size", bytes.size()}};
  Json content = bytes;
  if (to_body(content)) {
    answer["encoding"] = "utf-8";
    answer["content"] = std::move(content);
  } else {
    answer["encoding"] = "base64";
    answer["content"] = to_base64(bytes);
  }
  return answer;
}

}  // namespace

Outcome<void> upload(Context& context) {
  const auto files = context.args().all("FILE");
  const auto name = context.args().option("name");
  if (name && files.size() > 1) return usage("--name is for one FILE only; see 'okcvm help upload'");
  Json uploads = Json::array();
  const auto print_done = [&]() -> Outcome<void> {
    if (context.json()) return context.print_json(Json{{"uploads", uploads}});
    Table table({"PATH", ">SIZE", "TYPE", "MIME TYPE"});
    for (const auto& row : uploads)
      table.row({text_in(row, "path"), human_size(number_in(row, "size")), text_in(row, "type"),
                 text_in(row, "mime_type")});
    return uploads.empty() ? Outcome<void>() : context.print(table.text());
  };
  for (const auto& file : files) {
    if (file == "-" && !name) return usage("standard input needs a --name; see 'okcvm help upload'");
    Request request;
    request.method = "POST";
    request.target = context.session(
        "/uploads" + query({{"name", name.value_or(std::filesystem::path(file).filename().string())}}));
    auto answer = send_file(context, std::move(request), file);
    if (!answer) {
      if (auto printed = print_done(); !printed) return printed;  // what did arrive
      auto failure = answer.error();
      if (!failure.message.starts_with(file)) failure.message = file + ": " + failure.message;
      return tl::unexpected(std::move(failure));
    }
    uploads.push_back(std::move(*answer));
  }
  return print_done();
}

Outcome<void> read(Context& context) {
  const auto path = context.args().argument("PATH");
  Request request;
  request.target = file_target(context, path);
  request.on_header = [&](const Response& response) -> Outcome<void> {
    if (!response.header("etag").empty()) return {};  // every file has one, no listing does
    return refuse("invalid_request", path + " is a directory: use 'okcvm ls'");
  };
  if (context.json()) {
    const auto response = context.client().send(request);
    if (!response) return tl::unexpected(response.error());
    return context.print_json(content_json(path, response->body));
  }
  const auto response =
      context.client().send(request, [&](std::string_view piece) { return context.print(piece); });
  if (!response) return tl::unexpected(response.error());
  return {};
}

Outcome<void> write(Context& context) {
  const auto mode = context.args().option("mode");
  if (mode && mode->empty()) return usage("--mode takes octal digits; see 'okcvm help write'");
  const auto etag = context.args().option("if-match");
  if (etag && etag->empty()) return usage("--if-match is empty; see 'okcvm help write'");
  Request request;
  request.method = "PUT";
  request.target =
      file_target(context, context.args().argument("PATH")) + query({{"mode", mode.value_or("")}});
  if (etag) request.headers.emplace_back("If-Match", *etag);
  if (context.args().has("new")) request.headers.emplace_back("If-None-Match", "*");
  const auto answer = send_file(context, std::move(request), context.args().option("from").value_or("-"));
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  return context.print(visible(text_in(*answer, "path")) + "  " + human_size(number_in(*answer, "size")) +
                       "  etag " + visible(text_in(*answer, "etag")) + "\n");
}

Outcome<void> rm(Context& context) {
  Json removed = Json::array();
  const auto print_done = [&]() -> Outcome<void> {
    if (context.json()) return context.print_json(Json{{"removed", removed}});
    std::string text;
    for (const auto& row : removed) text += "removed " + visible(text_in(row, "path")) + "\n";
    return context.print(text);
  };
  const auto options = query({{"recursive", context.args().has("recursive") ? "true" : ""}});
  for (const auto& path : context.args().all("PATH")) {
    Request request;
    request.method = "DELETE";
    request.target = file_target(context, path) + options;
    auto answer = context.send(request);
    if (!answer) {
      if (auto printed = print_done(); !printed) return printed;  // what is gone already
      return tl::unexpected(answer.error());
    }
    removed.push_back(std::move(*answer));
  }
  return print_done();
}

Outcome<void> ls(Context& context) {
  const auto target = file_target(context, context.args().argument("PATH"));
  const auto itself = context.get(target + "?stat=true");
  if (!itself) return tl::unexpected(itself.error());
  if (text_in(*itself, "type") != "directory")
    return context.json() ? context.print_json(*itself) : context.print(entry_line(*itself));

  const auto listing = context.get_pages(target, {}, "entries", encoded_name);
  if (!listing) return tl::unexpected(listing.error());
  if (context.json()) return context.print_json(*listing);
  std::string text;
  for (const auto& entry : list_in(*listing, "entries")) text += entry_line(entry);
  return context.print(text);
}

Outcome<void> resolve(Context& context) {
  const auto& path = context.args().argument("PATH");
  Json body = is_utf8(path) ? Json{{"path", path}} : Json{{"encoded_path", percent_encoded_path(path)}};
  if (auto mode = context.args().option("mode")) body["mode"] = *mode;
  if (context.args().has("must-exist")) body["must_exist"] = true;
  if (context.args().has("for-write")) body["for_write"] = true;
  const auto answer = context.post(context.session("/resolve"), body);
  if (!answer) return tl::unexpected(answer.error());
  if (context.json()) return context.print_json(*answer);
  return context.print(visible(text_in(*answer, "mount_path")) + "\n");
}

Outcome<void> adapt_prompt(Context& context) {
  const auto prompt = read_standard_input(kLargestPrompt);
  if (!prompt) return tl::unexpected(prompt.error());
  const auto answer = context.post(context.session("/adapt-prompt"), {{"prompt", *prompt}});
  if (!answer) return tl::unexpected(answer.error());
  return context.json() ? context.print_json(*answer) : context.print(text_in(*answer, "prompt"));
}

}  // namespace okcvm::cli::run
