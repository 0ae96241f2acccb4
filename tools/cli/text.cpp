#include "tools/cli/text.h"

#include <locale.h>
#include <wchar.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

#include "policy/iso_time.h"
#include "policy/utf8.h"

namespace okcvm::cli {

namespace {

constexpr std::int64_t kHour = 3600;
constexpr std::int64_t kDay = 24 * kHour;

/// C0 and C1 controls, DEL, line separators, and the marks and overrides of direction (Bidi_Control, UAX #9)
/// that make text look like other text.
bool is_control(char32_t point) {
  const auto is_in = [point](char32_t first, char32_t last) { return point >= first && point <= last; };
  return is_in(0, 0x1F) || is_in(0x7F, 0x9F) || point == 0x061C || is_in(0x200E, 0x200F) ||
         is_in(0x2028, 0x202E) || is_in(0x2066, 0x2069);
}

struct Fitting {
  std::size_t bytes = 0;
  std::size_t columns = 0;
};

/// As much of a visible text as takes at most so many columns in a terminal: two for wide characters, none
/// for combining ones.
Fitting fitting(std::string_view text, std::size_t most) {
  static const locale_t unicode = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t former = unicode ? ::uselocale(unicode) : nullptr;
  Fitting fit;
  while (fit.bytes < text.size()) {
    const auto character = utf8_character(text.substr(fit.bytes));
    const int width = character && unicode ? ::wcwidth(static_cast<wchar_t>(character->code_point)) : 1;
    const std::size_t taken = width < 0 ? 1 : static_cast<std::size_t>(width);
    if (taken > most - fit.columns) break;
    fit.columns += taken;
    fit.bytes += character ? character->size : 1;
  }
  if (former) ::uselocale(former);
  return fit;
}

std::size_t columns(std::string_view text) {
  return fitting(text, text.npos).columns;
}

}  // namespace

std::string visible(std::string_view text, bool lines) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const auto character = utf8_character(text);
    const auto bytes = text.substr(0, character ? character->size : 1);
    const bool stays = lines && (text[0] == '\n' || text[0] == '\t');
    text.remove_prefix(bytes.size());
    if (character && (stays || !is_control(character->code_point))) {
      shown += bytes;
      continue;
    }
    for (const char c : bytes) {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(c)));
      shown += code.data();
    }
  }
  return shown;
}

std::string shortened(std::string_view text, std::size_t most) {
  auto shown = visible(text);
  if (fitting(shown, most).bytes == shown.size()) return shown;
  return shown.substr(0, fitting(shown, most - 1).bytes) + "…";
}

std::string visible_json(std::string_view json) {
  std::string shown;
  shown.reserve(json.size());
  while (!json.empty()) {
    const auto character = utf8_character(json);
    const auto bytes = json.substr(0, character ? character->size : 1);
    json.remove_prefix(bytes.size());
    if (!character || !is_control(character->code_point) || bytes == "\n") {
      shown += bytes;
      continue;
    }
    std::array<char, 8> code{};  // no control is beyond U+FFFF
    std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(character->code_point));
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

std::string local_time(std::string_view iso) {
  const auto time = parse_time(iso);
  if (!time) return std::string(iso);
  std::tm parts{};
  ::localtime_r(&time->tv_sec, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

std::string age(std::string_view iso, std::int64_t now) {
  const auto then = parse_time(iso);
  if (!then) return std::string(iso);
  const std::int64_t seconds = now - then->tv_sec;
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

}  // namespace okcvm::cli
