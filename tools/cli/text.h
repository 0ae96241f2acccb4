#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace okcvm::cli {

/// The text with control characters, and bytes that are not UTF-8, written as \xNN: what a name from a
/// session may do to a terminal. With `lines`, newlines and tabs stay as they are.
std::string visible(std::string_view text, bool lines = false);

/// The visible text, cut where it takes more columns of a terminal; an ellipsis is its last one then.
std::string shortened(std::string_view text, std::size_t most);

/// JSON that says the same, with what visible() writes otherwise as \uNNNN; line ends stay.
std::string visible_json(std::string_view json);

/// "812 B", "4.0 KiB", "1.3 GiB".
std::string human_size(std::uint64_t bytes);
/// "1 file", "3 files", "2 directories" (give the plural where it is not an 's').
std::string count_of(std::uint64_t count, std::string_view one, std::string_view many = {});

/// An ISO 8601 UTC time ("2026-03-01T12:30:05.123Z") in local time, "2026-03-01 13:30:05"; text that is not a
/// time is given back.
std::string local_time(std::string_view iso);
/// How long ago: "12 s ago", "3 h ago"; text that is not a time is given back.
std::string age(std::string_view iso, std::int64_t now);

/// What stands in a table for a text that is empty: "-".
std::string or_dash(std::string text);

/// A table for people: columns as wide as their widest cell. A heading that starts with '>' is set to the
/// right. Cells are made visible() here.
class Table {
 public:
  explicit Table(std::vector<std::string> headings);
  void row(std::vector<std::string> cells);
  std::string text() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

/// Lines of at most `width` columns, each after `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width = 80);

}  // namespace okcvm::cli
