#include "tools/cli/text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

namespace okcvm::cli {

namespace {

constexpr std::int64_t kHour = 3600;
constexpr std::int64_t kDay = 24 * kHour;

/// The length of the UTF-8 sequence at the start of `text`; 0 if there is none (overlong forms and surrogates
/// included, Unicode 15 table 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto tail = [&](std::size_t count) {
    if (text.size() <= count) return false;
    for (std::size_t i = 1; i <= count; ++i)
      if ((byte(i) & 0xC0) != 0x80) return false;
    return true;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!tail(2) || (first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F)) return 0;
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!tail(3) || (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) return 0;
    return 4;
  }
  return 0;
}

/// C0 and C1 controls, DEL, line separators, and the marks and overrides of direction (Bidi_Control, UAX #9)
/// that make text look like other text.
bool is_control(std::string_view sequence) {
  const auto is_in = [sequence](std::string_view first, std::string_view last) {
    return sequence >= first && sequence <= last;
  };
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7F;
  if (sequence.size() == 2) return is_in("\u0080", "\u009F") || sequence == "\u061C";
  return is_in("\u200E", "\u200F") || is_in("\u2028", "\u202E") || is_in("\u2066", "\u2069");
}

/// Columns that visible text takes, one a code point.
std::size_t columns(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace

std::string visible(std::string_view text, bool lines) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    std::size_t length = utf8_length(text);
    const bool escape = length == 0 || (is_control(text.substr(0, length)) &&
                                        !(lines && (text[0] == '\n' || text[0] == '\t')));
    if (length == 0) length = 1;
    for (const char c : text.substr(0, length)) {
      if (!escape) {
        shown += c;
        continue;
      }
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      shown += code.data();
    }
    text.remove_prefix(length);
  }
  return shown;
}

std::string visible_json(std::string_view json) {
  std::string shown;
  shown.reserve(json.size());
  while (!json.empty()) {
    const auto sequence = json.substr(0, std::max<std::size_t>(utf8_length(json), 1));
    json.remove_prefix(sequence.size());
    if (!is_control(sequence) || sequence == "\n") {
      shown += sequence;
      continue;
    }
    constexpr std::array kFirstBits{0x7Fu, 0x1Fu, 0x0Fu};  // no control takes more than three bytes
    unsigned point = static_cast<unsigned char>(sequence[0]) & kFirstBits.at(sequence.size() - 1);
    for (const char c : sequence.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3F);
    std::array<char, 8> code{};
    std::snprintf(code.data(), code.size(), "\\u%04x", point);
    shown += code.data();
  }
  return shown;
}

std::string human_size(std::uint64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string count_of(std::uint64_t count, std::string_view one, std::string_view many) {
  std::string text = std::to_string(count) + " ";
  if (count == 1) return text.append(one);
  return many.empty() ? text.append(one) + "s" : text.append(many);
}

std::optional<std::int64_t> parse_time(std::string_view iso) {
  std::tm parts{};
  const std::string text(iso);
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  if (*rest == '.') {
    ++rest;
    while (*rest >= '0' && *rest <= '9') ++rest;
  }
  if (std::string_view(rest) != "Z" && std::string_view(rest) != "+00:00") return std::nullopt;
  return static_cast<std::int64_t>(::timegm(&parts));
}

std::string local_time(std::string_view iso) {
  const auto seconds = parse_time(iso);
  if (!seconds) return std::string(iso);
  const std::time_t time = *seconds;
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

std::string age(std::string_view iso, std::int64_t now) {
  const auto then = parse_time(iso);
  if (!then) return std::string(iso);
  const std::int64_t seconds = now - *then;
  if (seconds < 2) return "now";
  if (seconds < 120) return std::to_string(seconds) + " s ago";
  if (seconds < 2 * kHour) return std::to_string(seconds / 60) + " min ago";
  if (seconds < 2 * kDay) return std::to_string(seconds / kHour) + " h ago";
  return std::to_string(seconds / kDay) + " days ago";
}

std::string or_dash(std::string text) {
  return text.empty() ? "-" : std::move(text);
}

Table::Table(std::vector<std::string> headings) {
  for (auto& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    if (right_.back()) heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void Table::row(std::vector<std::string> cells) {
  for (auto& cell : cells) cell = visible(cell);
  cells.resize(right_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(right_.size());
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - columns(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (right_[i] ? space + row[i] : row[i] + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string out;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line + '\n';
    line.clear();
  };
  while (!text.empty()) {
    const auto space = text.find(' ');
    const auto word = text.substr(0, space);
    if (!line.empty() && indent + columns(line) + 1 + columns(word) > width) end_line();
    if (!word.empty()) line += (line.empty() ? "" : " ") + std::string(word);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  end_line();
  return out;
}

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kUnreserved = "-._~";
  std::string encoded;
  for (const char c : text) {
    const bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (alphanumeric || kUnreserved.find(c) != std::string_view::npos || (keep_slashes && c == '/')) {
      encoded += c;
      continue;
    }
    std::array<char, 8> code{};
    std::snprintf(code.data(), code.size(), "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    encoded += code.data();
  }
  return encoded;
}

}  // namespace okcvm::cli
