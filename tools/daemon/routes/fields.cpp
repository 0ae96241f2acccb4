#include "tools/daemon/routes/fields.h"

#include <charconv>

namespace okcvm::daemon {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxEntries = 256;  // of a list or map of texts

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Whether JSON has a whole number beyond 64 bits, which the parser would round.
bool has_huge_number(std::string_view text) {
  bool is_in_text = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') is_in_text = !is_in_text;
    if (is_in_text && text[at] == '\\') ++at;
    if (is_in_text || (text[at] != '-' && (text[at] < '0' || text[at] > '9'))) continue;
    const auto end = std::min(text.find_first_not_of("+-.eE0123456789", at), text.size());
    const auto number = text.substr(at, end - at);
    at = end - 1;
    if (number.find_first_of(".eE") != number.npos) continue;
    if (!number_in<std::int64_t>(number) && !number_in<std::uint64_t>(number)) return true;
  }
  return false;
}

/// Parses JSON that is valid UTF-8, nested no deeper than kMaxDepth, without a key given twice and without
/// whole numbers beyond 64 bits.
Result<json> parse_strictly(const std::string& text) {
  std::string wrong;
  std::vector<std::set<std::string>> keys;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) wrong = "it is nested too deeply";
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty() &&
        !keys.back().insert(parsed.get<std::string>()).second)
      wrong = "it names \"" + parsed.get<std::string>() + "\" twice";
    return wrong.empty();
  };
  // The parser would take a NUL byte for the end.
  const bool has_nul = text.find('\0') != text.npos;
  auto value = has_nul ? json(json::value_t::discarded) : json::parse(text, watch, false);
  if (wrong.empty() && value.is_discarded()) wrong = "it is not valid JSON in UTF-8";
  if (wrong.empty() && has_huge_number(text))
    wrong = "it has a whole number beyond 64 bits, which would be rounded: send that as a string";
  if (!wrong.empty()) return fail(Code::kInvalidRequest, "the body cannot be used: " + wrong);
  return value;
}

std::string range_text(std::int64_t least, std::int64_t most) {
  return "a whole number from " + std::to_string(least) + " to " + std::to_string(most) + " is needed";
}

}  // namespace

Fields::Fields(const std::string& body) : value_(json::object()) {
  if (body.find_first_not_of(" \t\r\n") == std::string::npos) return;
  auto parsed = parse_strictly(body);
  if (!parsed)
    error_ = parsed.error();
  else if (!parsed->is_object())
    error_ = Error::of(Code::kInvalidRequest, "the body must be a JSON object");
  else
    value_ = std::move(*parsed);
}

Fields::Fields(const Request& request) : Fields(request.body) {
  if (auto ended = QueryFields(request.query).end(); !ended) error_ = ended.error();
}

Fields::Fields(json value, std::string prefix) : value_(std::move(value)), prefix_(std::move(prefix)) {}

bool Fields::has(std::string_view name) const {
  const auto found = value_.find(name);
  return found != value_.end() && !found->is_null();
}

/// The field's value; nothing if it is absent or null.
const json* Fields::take(std::string_view name) {
  asked_.emplace(name);
  return has(name) ? &*value_.find(name) : nullptr;
}

void Fields::refuse(std::string_view name, std::string_view reason) {
  if (!error_)
    error_ = Error::of(Code::kInvalidRequest, prefix_ + std::string(name) + ": " + std::string(reason));
}

std::optional<std::string> Fields::text(std::string_view name, std::size_t most) {
  const auto* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_string()) return refuse(name, "a string is needed"), std::nullopt;
  auto text = value->get<std::string>();
  if (text.size() > most)
    return refuse(name, "at most " + std::to_string(most) + " bytes are taken"), std::nullopt;
  return text;
}

std::string Fields::required_text(std::string_view name, std::size_t most) {
  if (!has(name)) refuse(name, "it is missing");
  return text(name, most).value_or("");
}

bool Fields::flag(std::string_view name, bool otherwise) {
  const auto* value = take(name);
  if (!value) return otherwise;
  if (!value->is_boolean()) return refuse(name, "true or false is needed"), otherwise;
  return value->get<bool>();
}

std::optional<std::int64_t> Fields::integer(std::string_view name, std::int64_t least, std::int64_t most) {
  const auto* value = take(name);
  if (!value) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<std::uint64_t>() <= INT64_MAX);
  const auto number = fits ? value->get<std::int64_t>() : 0;
  if (!fits || number < least || number > most) return refuse(name, range_text(least, most)), std::nullopt;
  return number;
}

std::optional<std::map<std::string, std::string>> Fields::texts_by_name(std::string_view name) {
  const auto* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_object() || value->size() > kMaxEntries)
    return refuse(name, "an object of at most 256 strings is needed"), std::nullopt;
  std::map<std::string, std::string> texts;
  for (const auto& [key, entry] : value->items()) {
    if (!entry.is_string()) return refuse(std::string(name) + "." + key, "a string is needed"), std::nullopt;
    texts.emplace(key, entry.get<std::string>());
  }
  return texts;
}

std::optional<std::map<std::string, std::string>> Fields::labels() {
  auto labels = texts_by_name("labels");
  if (!labels) return std::nullopt;
  constexpr std::size_t kMostInAll = 64 << 10;  // kept in memory for every session, and in every list
  std::size_t in_all = 0;
  for (const auto& [name, value] : *labels) {
    in_all += name.size() + value.size();
    if (name.empty() || name.size() > 256 || value.size() > 4096)
      return refuse("labels", "names of 1 to 256 bytes and values of up to 4096 are taken"), std::nullopt;
  }
  if (in_all > kMostInAll) return refuse("labels", "at most 64 KiB are taken in all"), std::nullopt;
  return labels;
}

std::optional<std::vector<std::string>> Fields::texts(std::string_view name) {
  const auto* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_array()) return refuse(name, "a list of strings is needed"), std::nullopt;
  std::vector<std::string> texts;
  for (const auto& entry : *value) {
    if (!entry.is_string()) return refuse(name, "a list of strings is needed"), std::nullopt;
    texts.push_back(entry.get<std::string>());
  }
  return texts;
}

std::optional<Fields> Fields::object(std::string_view name) {
  const auto* value = take(name);
  if (!value) return std::nullopt;
  if (!value->is_object()) return refuse(name, "an object is needed"), std::nullopt;
  return Fields(*value, prefix_ + std::string(name) + ".");
}

json Fields::required_value(std::string_view name) {
  asked_.emplace(name);
  const auto found = value_.find(name);
  if (found == value_.end()) return refuse(name, "it is missing"), json();
  return *found;
}

void Fields::adopt(Fields& inner) {
  if (auto ended = inner.end(); !ended && !error_) error_ = ended.error();
}

Result<void> Fields::end() {
  if (error_) return fail(*error_);
  for (const auto& [name, value] : value_.items())
    if (!asked_.contains(name))
      return fail(Code::kInvalidRequest, prefix_ + name + ": there is no such field");
  return {};
}

std::optional<std::string> QueryFields::text(std::string_view name) {
  asked_.emplace(name);
  const auto found = query_.find(name);
  return found == query_.end() ? std::nullopt : std::optional(found->second);
}

bool QueryFields::flag(std::string_view name, bool otherwise) {
  const auto value = text(name);
  if (!value) return otherwise;
  if (value->empty() || *value == "1" || *value == "true") return true;
  if (*value == "0" || *value == "false") return false;
  return refuse(name, "true or false is needed"), otherwise;
}

std::optional<std::int64_t> QueryFields::integer(std::string_view name, std::int64_t least,
                                                 std::int64_t most) {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto number = number_in<std::int64_t>(*value);
  if (!number || *number < least || *number > most)
    return refuse(name, range_text(least, most)), std::nullopt;
  return number;
}

void QueryFields::refuse(std::string_view name, std::string_view reason) {
  if (!error_)
    error_ = Error::of(Code::kInvalidRequest, "?" + std::string(name) + ": " + std::string(reason));
}

Result<void> QueryFields::end() {
  if (error_) return fail(*error_);
  for (const auto& [name, value] : query_)
    if (!asked_.contains(name))
      return fail(Code::kInvalidRequest, "?" + name + ": there is no such parameter here");
  return {};
}

std::optional<mode_t> parse_mode(std::string_view text) {
  unsigned int mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || mode > 0777)
    return std::nullopt;
  return static_cast<mode_t>(mode);
}

std::string mode_text(mode_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%04o", static_cast<unsigned int>(mode));
  return text;
}

}  // namespace okcvm::daemon
