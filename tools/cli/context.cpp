#include "tools/cli/context.h"

#include <unistd.h>

#include "policy/percent_encoding.h"
#include "tools/cli/text.h"

namespace okcvm::cli {

namespace {

Outcome<Json> parse_answer(const std::string& body) {
  if (body.empty()) return Json::object();
  auto answer = Json::parse(body, nullptr, false);
  if (answer.is_discarded()) return refuse("internal", "the answer is not JSON: is that socket okcvmd's?");
  return answer;
}

/// Takes the lines of a progress stream apart: shows progress, keeps the last line.
class ProgressReader {
 public:
  explicit ProgressReader(const std::string& what) : line_(what) {}

  Outcome<void> take(std::string_view piece) {
    pending_ += piece;
    for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
      take_line(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
    return {};
  }

  Outcome<Json> result() {
    if (!pending_.empty()) take_line(std::exchange(pending_, {}));
    if (member_in(last_, "error").is_object()) return tl::unexpected(refusal_in(last_.dump(), 200));
    if (last_.is_object() && last_.contains("result")) return last_["result"];
    if (last_.is_object()) return last_;  // answered at once, without a stream
    return refuse("internal",
                  "the daemon stopped before it said how the work ended: look at the session before "
                  "trying again");
  }

 private:
  void take_line(const std::string& line) {
    if (line.empty()) return;
    auto message = Json::parse(line, nullptr, false);
    if (const auto& progress = member_in(message, "progress"); progress.is_object())
      line_.show(text_in(progress, "phase"), number_in(progress, "done"), number_in(progress, "total"),
                 false);
    else
      last_ = std::move(message);
  }

  ProgressLine line_;
  std::string pending_;
  Json last_;
};

Outcome<Request> post_request(const std::string& target, const Json& body) {
  auto bytes = to_body(body);
  if (!bytes) return tl::unexpected(bytes.error());
  Request request;
  request.method = "POST";
  request.target = target;
  request.body = std::move(*bytes);
  return request;
}

}  // namespace

const Json& member_in(const Json& object, std::string_view key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(std::string(key));
  return found == object.end() ? kNull : *found;
}

std::string text_in(const Json& object, std::string_view key) {
  const auto& value = member_in(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::uint64_t number_in(const Json& object, std::string_view key) {
  const auto& value = member_in(object, key);
  return value.is_number() ? value.get<std::uint64_t>() : 0;
}

bool flag_in(const Json& object, std::string_view key) {
  const auto& value = member_in(object, key);
  return value.is_boolean() && value.get<bool>();
}

const Json& list_in(const Json& object, std::string_view key) {
  static const Json kEmpty = Json::array();
  const auto& value = member_in(object, key);
  return value.is_array() ? value : kEmpty;
}

std::string joined(const Json& list, std::string_view none) {
  std::string text;
  if (list.is_array())
    for (const auto& item : list)
      if (item.is_string()) text += (text.empty() ? "" : ", ") + item.get<std::string>();
  return text.empty() ? std::string(none) : text;
}

std::string owner_text(const Json& session) {
  const auto& owner = member_in(session, "owner");
  const auto name = text_in(owner, "name");
  return name.empty() ? std::to_string(number_in(owner, "uid")) : name;
}

std::string session_target(std::string_view id, std::string_view rest) {
  return "/v1/sessions/" + percent_encoded(id) + std::string(rest);
}

std::string query(const Filters& pairs) {
  std::string text;
  for (const auto& [name, value] : pairs)
    if (!value.empty()) text += (text.empty() ? "?" : "&") + name + "=" + percent_encoded(value);
  return text;
}

Outcome<std::string> to_body(const Json& json) try { return json.dump(); } catch (const Json::type_error&) {
  return refuse("invalid_request", "a name or text in this request is not UTF-8, which JSON cannot carry");
}

Outcome<Json> Context::get(const std::string& target) const {
  Request request;
  request.target = target;
  return send(request);
}

Outcome<Json> Context::get_pages(const std::string& target, const Filters& filters, const std::string& member,
                                 const std::function<std::string(const Json& row)>& cursor,
                                 std::size_t most) const {
  const auto filter = query(filters);
  const auto pages = target + (filter.empty() ? "?" : filter + "&") + "after=";
  Json rows = Json::array();
  for (std::string after;;) {
    auto page = get(pages + after);
    if (!page) return page;
    for (const auto& row : list_in(*page, member)) rows.push_back(row);
    const auto last = rows.empty() ? std::string() : cursor(rows.back());
    const bool is_more = flag_in(*page, "truncated");
    if (is_more && rows.size() < most && last != after) {
      after = last;
      continue;
    }
    (*page)["truncated"] = is_more || rows.size() > most;
    if (rows.size() > most) rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(most), rows.end());
    (*page)[member] = std::move(rows);
    return page;
  }
}

Outcome<Json> Context::post(const std::string& target, const Json& body) const {
  auto request = post_request(target, body);
  if (!request) return tl::unexpected(request.error());
  return send(*request);
}

Outcome<Json> Context::send(const Request& request) const {
  auto response = client_.send(request);
  if (!response) return tl::unexpected(response.error());
  return parse_answer(response->body);
}

Outcome<Json> Context::get_with_progress(const std::string& target, const std::string& what) const {
  Request request;
  request.target = target;
  return send_with_progress(std::move(request), what);
}

Outcome<Json> Context::post_with_progress(const std::string& target, const Json& body,
                                          const std::string& what) const {
  auto request = post_request(target, body);
  if (!request) return tl::unexpected(request.error());
  return send_with_progress(std::move(*request), what);
}

Outcome<Json> Context::send_with_progress(Request request, const std::string& what) const {
  request.headers.emplace_back("Accept", "application/x-ndjson, application/json");
  ProgressReader reader(what);
  auto response = client_.send(request, [&](std::string_view piece) { return reader.take(piece); });
  if (!response) return tl::unexpected(response.error());
  return reader.result();
}

Outcome<void> Context::print_json(const Json& answer) const {
  const int indent = out_.is_terminal() ? 2 : -1;
  const auto text = answer.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
  return out_.write(out_.is_terminal() ? visible_json(text) : text);
}

void Context::note(std::string_view text) const {
  (void)write_all(STDERR_FILENO, "okcvm: note: " + visible(text) + "\n", "standard error");
}

}  // namespace okcvm::cli
