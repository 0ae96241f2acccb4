#include "tools/daemon/routes/fields.h"

#include <charconv>

namespace okcvm::daemon {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxValues = 200'000;
constexpr std::size_t kMaxEntries = 256;  // of a list or map of texts

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// What is wrong with JSON that is valid, if something is. Nothing of it is kept, so that little is needed
/// for what is refused.
class Watch final : public json::json_sax_t {
 public:
  const std::string& wrong() const { return wrong_; }

  bool null() override { return is_value(); }
  bool boolean(bool) override { return is_value(); }
  bool number_integer(number_integer_t) override { return is_value(); }
  bool number_unsigned(number_unsigned_t) override { return is_value(); }
  bool number_float(number_float_t, const string_t& text) override {
    // A whole number that it cannot hold comes as one that it rounded.
    if (text.find_first_of(".eE") == text.npos)
      return refuse("it has a whole number beyond 64 bits, which would be rounded: send that as a string");
    return is_value();
  }
  bool string(string_t&) override { return is_value(); }
  bool binary(binary_t&) override { return is_value(); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return is_value() && is_shallow();
  }
  bool key(string_t& name) override {
    return keys_.back().insert(name).second || refuse("it names \"" + name + "\" twice");
  }
  bool end_object() override { return ends(); }
  bool start_array(std::size_t) override {
    keys_.emplace_back();
    return is_value() && is_shallow();
  }
  bool end_array() override { return ends(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("it is not valid JSON in UTF-8");
  }

 private:
  bool refuse(std::string reason) {
    wrong_ = std::move(reason);
    return false;
  }
  bool is_value() { return ++values_ <= kMaxValues || refuse("it has more than 200000 values"); }
  bool is_shallow() { return keys_.size() <= kMaxDepth || refuse("it is nested too deeply"); }
  bool ends() {
    keys_.pop_back();
    return true;
  }

  std::string wrong_;
  std::vector<std::set<std::string>> keys_;  // of what is open, from the outside in
  std::size_t values_ = 0;
};

/// Parses JSON that is valid UTF-8, nested no deeper than kMaxDepth, without a key given twice and without
/// whole numbers beyond 64 bits.
Result<json> parse_strictly(const std::string& text) {
  Watch watch;
  // The parser would take a NUL byte for the end.
  std::string wrong = text.find('\0') != text.npos ? "it is not valid JSON in UTF-8" : "";
  if (wrong.empty() && !json::sax_parse(text, &watch)) wrong = watch.wrong();
  if (!wrong.empty()) return fail(Code::kInvalidRequest, "the body cannot be used: " + wrong);
  return json::parse(text);
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

bool Fields::has(std::string_view name) {
  asked_.emplace(name);
  const auto found = value_.find(name);
  return found != value_.end() && !found->is_null();
}

/// The field's value; nothing if it is absent or null.
const json* Fields::take(std::string_view name) {
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
  if (const auto problem = problem_of(*labels); !problem.empty())
    return refuse("labels", problem), std::nullopt;
  return labels;
}

std::string_view Fields::problem_of(const std::map<std::string, std::string>& labels) {
  constexpr std::size_t kMostInAll = 64 << 10;  // kept in memory for every session, and in every list
  std::size_t in_all = 0;
  for (const auto& [name, value] : labels) {
    in_all += name.size() + value.size();
    if (name.empty() || name.size() > 256 || value.size() > 4096)
      return "names of 1 to 256 bytes and values of up to 4096 are taken";
  }
  return in_all > kMostInAll ? "at most 64 KiB are taken in all" : "";
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

bool QueryFields::has(std::string_view name) {
  asked_.emplace(name);
  return query_.contains(name);
}

std::optional<std::string> QueryFields::text(std::string_view name) {
  if (!has(name)) return std::nullopt;
  const auto& value = query_.find(name)->second;
  return value.empty() ? std::nullopt : std::optional(value);
}

bool QueryFields::flag(std::string_view name, bool otherwise) {
  if (!has(name)) return otherwise;
  const auto value = text(name).value_or("true");
  if (value == "1" || value == "true") return true;
  if (value == "0" || value == "false") return false;
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

std::size_t QueryFields::limit(std::size_t most) {
  const auto asked = integer("limit", 1, INT32_MAX);
  return asked ? std::min(static_cast<std::size_t>(*asked), most) : most;
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
