#include "policy/git_config.h"

#include <map>

namespace okcvm {
namespace {

constexpr int kEnd = -1;

bool is_blank(int c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}
bool is_letter(int c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_of_name(int c) {
  return is_letter(c) || (c >= '0' && c <= '9') || c == '-';
}
char lower(int c) {
  return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}
/// What a backslash and `c` stand for in a value; kEnd for what may not follow one.
int unescaped(int c) {
  switch (c) {
    case '"':
    case '\\':
      return c;
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'b':
      return '\b';
    default:
      return kEnd;
  }
}

struct Variable {
  std::string section;  // with the subsection: "remote.origin"
  std::string name;     // in lower case
  std::string value;
};

/// Reads the variables of a config file one after the other, as git does.
class ConfigText {
 public:
  explicit ConfigText(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);
  }

  /// Nothing at the end, and where the text is damaged.
  std::optional<Variable> next() {
    for (int c = take(); c != kEnd; c = take()) {
      if (is_blank(c) || c == '\n') continue;
      if (c == '#' || c == ';') {
        skip_line();
      } else if (c == '[') {
        if (!read_section()) return damaged();
      } else if (is_letter(c)) {
        return read_variable(c);
      } else {
        return damaged();
      }
    }
    return std::nullopt;
  }
  bool is_damaged() const { return is_damaged_; }

 private:
  std::nullopt_t damaged() {
    is_damaged_ = true;
    return std::nullopt;
  }

  int take() {
    if (rest_.empty()) return kEnd;
    if (rest_.starts_with("\r\n")) rest_.remove_prefix(1);
    const auto c = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return c;
  }

  void skip_line() {
    for (int c = take(); c != '\n' && c != kEnd; c = take()) {
    }
  }

  bool read_section() {
    section_.clear();
    int c = take();
    for (; is_of_name(c) || c == '.'; c = take()) section_ += lower(c);
    if (c == ']') return true;
    if (!is_blank(c)) return false;
    while (is_blank(c)) c = take();
    if (c != '"') return false;
    section_ += '.';
    for (c = take(); c != '"'; c = take()) {
      if (c == '\\') c = take();
      if (c == '\n' || c == kEnd) return false;
      section_ += static_cast<char>(c);
    }
    return take() == ']';
  }

  std::optional<Variable> read_variable(int c) {
    Variable variable{section_, {}, {}};
    for (; is_of_name(c); c = take()) variable.name += lower(c);
    while (is_blank(c)) c = take();
    if (c == '\n' || c == kEnd) return variable;
    if (c == '=' && read_value(variable.value)) return variable;
    return damaged();
  }

  bool read_value(std::string& value) {
    std::size_t size = 0;  // less the blanks at the end
    bool is_quoted = false;
    for (int c = take(); c != '\n' && c != kEnd; c = take()) {
      if (!is_quoted && (c == '#' || c == ';')) {
        skip_line();
        break;
      }
      if (c == '"') {
        is_quoted = !is_quoted;
        continue;
      }
      if (!is_quoted && is_blank(c)) {
        if (!value.empty()) value += static_cast<char>(c);
        continue;
      }
      if (c == '\\') {
        c = take();
        if (c == '\n') continue;
        c = unescaped(c);
        if (c == kEnd) return false;
      }
      value += static_cast<char>(c);
      size = value.size();
    }
    value.resize(size);
    return !is_quoted;
  }

  std::string_view rest_;
  std::string section_;
  bool is_damaged_ = false;
};

}  // namespace

std::optional<std::string> remote_url_in(std::string_view config) {
  constexpr std::string_view kRemote = "remote.";
  ConfigText text(config);
  std::map<std::string, std::string> urls;
  while (auto variable = text.next())
    if (variable->name == "url" && variable->section.starts_with(kRemote) && !variable->value.empty())
      urls[variable->section.substr(kRemote.size())] = std::move(variable->value);
  if (text.is_damaged() || urls.empty()) return std::nullopt;
  const auto origin = urls.find("origin");
  return origin == urls.end() ? urls.begin()->second : origin->second;
}

}  // namespace okcvm
