#include "snapshots/names.h"

#include <algorithm>
#include <array>
#include <optional>

#include "policy/utf8.h"
#include "snapshots/repository.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kMaxName = 255;         // NAME_MAX, limits.h
constexpr std::string_view kTooLong = "%00";  // a NUL byte is in no name
constexpr std::string_view kDigits = "0123456789abcdef";

void append_escaped(unsigned char byte, std::string& out) {
  out += '%';
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

/// Two hex digits of either case, or -1.
int byte_at(std::string_view text, std::size_t at) {
  int value = 0;
  for (std::size_t i = at; i < at + 2; ++i) {
    if (i >= text.size()) return -1;
    const char c = text[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/// The character that starts here; nothing where git sees none, and the name ends for it (utf8.c,
/// pick_one_utf8_char).
std::optional<Utf8Character> character_for_git(std::string_view text) {
  const auto character = utf8_character(text);
  const bool is_none = character && (character->code_point == 0xFFFE || character->code_point == 0xFFFF);
  return is_none ? std::nullopt : character;
}

/// Whether HFS+ ignores the character (utf8.c of git, next_hfs_char).
bool is_ignored_by_hfs(char32_t point) {
  const auto is_in = [point](char32_t first, char32_t last) { return point >= first && point <= last; };
  return is_in(0x200C, 0x200F) || is_in(0x202A, 0x202E) || is_in(0x206A, 0x206F) || point == 0xFEFF;
}

/// What a file system that folds case and drops what HFS+ and NTFS drop would call it.
std::string folded(std::string_view name) {
  std::string text;
  while (!name.empty()) {
    const auto character = character_for_git(name);
    const char c = name.front();
    if (!character || c == ':') break;  // a colon: an NTFS stream
    if (!is_ignored_by_hfs(character->code_point)) text += name.substr(0, character->size);
    if (c >= 'A' && c <= 'Z') text.back() = static_cast<char>(c - 'A' + 'a');
    name.remove_prefix(character->size);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

bool is_special(std::string_view name, bool is_link) {
  constexpr std::array<std::string_view, 3> kAlways{".git", ".gitmodules", ".gitattributes"};
  constexpr std::array<std::string_view, 2> kAsLinks{".gitignore", ".mailmap"};
  constexpr std::string_view kWorthALook = ".gGmM";
  const auto first = utf8_character(name);
  if (!first || (kWorthALook.find(name.front()) == kWorthALook.npos && !is_ignored_by_hfs(first->code_point)))
    return false;
  if (name == kFolderRecord) return true;
  const std::string text = folded(name);
  if (std::find(kAlways.begin(), kAlways.end(), text) != kAlways.end()) return true;
  if (is_link && std::find(kAsLinks.begin(), kAsLinks.end(), text) != kAsLinks.end()) return true;
  // "git~1", "gitmod~1", "gi7eba~1", "mailma~1": the short names that NTFS makes up.
  return text.find('~') != text.npos && (text.starts_with("gi") || text.starts_with("ma"));
}

bool has_special_part(std::string_view name) {
  for (auto at = name.find('\\'); at != name.npos; at = name.find('\\', at + 1)) {
    const auto part = name.substr(at + 1);
    if (is_special(part.substr(0, part.find('\\')), true)) return true;
  }
  return false;
}

}  // namespace

std::string to_git_name(std::string_view name, bool is_link) {
  const bool first = is_special(name.substr(0, name.find('\\')), is_link);
  const bool slashes = has_special_part(name);
  const bool percents = name.find('%') != name.npos;
  if (!first && !slashes && !percents) return std::string(name);
  std::string text;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool escape =
        (i == 0 && first) || (c == '\\' && slashes) || (c == '%' && byte_at(name, i + 1) >= 0);
    if (escape)
      append_escaped(static_cast<unsigned char>(c), text);
    else
      text += c;
  }
  if (text.size() <= kMaxName) return text;
  return std::string(kTooLong) + hash_object(ObjectKind::kBlob, name).hex();
}

std::optional<std::string> from_git_name(std::string_view git_name) {
  if (git_name.find('%') == git_name.npos) return std::string(git_name);
  if (git_name.starts_with(kTooLong)) return std::nullopt;
  return from_line(git_name);
}

std::string to_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7f || byte == '%')
      append_escaped(byte, line);
    else
      line += c;
  }
  return line;
}

std::string from_line(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const int byte = line[i] == '%' ? byte_at(line, i + 1) : -1;
    text += byte < 0 ? line[i] : static_cast<char>(byte);
    if (byte >= 0) i += 2;
  }
  return text;
}

}  // namespace okcvm::snapshots
