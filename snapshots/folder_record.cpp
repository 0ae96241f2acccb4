#include "snapshots/folder_record.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "policy/words.h"
#include "snapshots/names.h"

namespace okcvm::snapshots {
namespace {

void append_number(std::uint64_t value, int base, std::string& out) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, base).ptr;
  out.append(digits, end);
}

void append_time(const timespec& time, std::string& out) {
  char digits[24];
  auto end = std::to_chars(digits, digits + sizeof digits, static_cast<std::int64_t>(time.tv_sec)).ptr;
  out.append(digits, end);
  out += '.';
  end = std::to_chars(digits, digits + sizeof digits, time.tv_nsec).ptr;
  out.append(9 - static_cast<std::size_t>(end - digits), '0');
  out.append(digits, end);
}

void append_attributes(char type, const Attributes& attributes, std::string& out) {
  out += type;
  out += ' ';
  append_number(attributes.mode, 8, out);
  out += ' ';
  append_number(attributes.uid, 10, out);
  out += ':';
  append_number(attributes.gid, 10, out);
  out += ' ';
  append_time(attributes.modified, out);
}

void append_xattrs(const Xattrs& xattrs, std::string& out) {
  for (const auto& [name, value] : xattrs.list())
    out.append("x ").append(to_line(name)).append(" ").append(to_line(value)).append("\n");
}

/// Takes a line apart from the left.
class Fields {
 public:
  explicit Fields(std::string_view line) : rest_(line) {}

  bool ok() const { return ok_; }
  std::string_view word() { return take_word(rest_); }
  std::string_view rest() const { return rest_; }
  template <typename Number>
  Number number(int base, char ending) {
    Number value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value, base);
    const auto used = static_cast<std::size_t>(end - rest_.data());
    ok_ = ok_ && error == std::errc() && (used == rest_.size() || rest_[used] == ending);
    rest_.remove_prefix(ok_ ? std::min(used + 1, rest_.size()) : rest_.size());
    return value;
  }
  Attributes attributes() {
    Attributes found;
    found.mode = number<mode_t>(8, ' ');
    found.uid = number<uid_t>(10, ':');
    found.gid = number<gid_t>(10, ' ');
    found.modified.tv_sec = number<std::int64_t>(10, '.');
    found.modified.tv_nsec = number<long>(10, ' ');
    return found;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

/// What the lines so far say.
struct Parsed {
  FolderRecord record;
  Attributes* last = nullptr;  // of the last entry, or the folder
  Xattrs::List xattrs;         // of that, as far as they have come
  char kind = '\0';            // of the last line

  void end_entry() {
    if (last && !xattrs.empty()) last->xattrs = Xattrs(std::exchange(xattrs, {}));
  }
};

/// The entry of this name before the last, as whose xattrs are told.
const Node* earlier_entry(const FolderRecord& record, std::string_view name) {
  if (record.entries.empty()) return nullptr;
  const auto end = record.entries.end() - 1;
  const auto at = std::lower_bound(record.entries.begin(), end, name, ByName());
  return at != end && (*at)->name == name ? at->get() : nullptr;
}

bool parse_line(std::string_view line, Parsed& parsed) {
  auto& [record, last, xattrs, kind] = parsed;
  if (line.size() < 2 || line[1] != ' ') return false;
  Fields fields(line.substr(2));
  if (line[0] != 'x') parsed.end_entry();
  const char before = std::exchange(kind, line[0]);
  switch (line[0]) {
    case '.':
      record.attributes = fields.attributes();
      last = &record.attributes;
      return fields.ok();
    case '=': {
      if (before != 'f' && before != 'l') return false;
      const Node* const earlier = earlier_entry(record, from_line(fields.rest()));
      if (earlier) record.entries.back()->attributes.xattrs = earlier->attributes.xattrs;
      return earlier != nullptr;
    }
    case 'f':
    case 'l': {
      auto node = std::make_unique<Node>();
      node->type = line[0] == 'f' ? NodeType::kFile : NodeType::kLink;
      node->attributes = fields.attributes();
      node->size = fields.number<std::uint64_t>(10, ' ');
      node->sparse = fields.word() == "s";
      node->name = from_line(fields.rest());
      last = &node->attributes;
      record.entries.push_back(std::move(node));
      return fields.ok() && Name::parse(record.entries.back()->name).has_value();
    }
    case 'x': {
      if (!last || before == '=' || before == 'd') return false;
      const auto name = fields.word();
      xattrs.emplace_back(from_line(name), from_line(fields.rest()));
      return !name.empty();
    }
    case 'd': {
      const auto git_name = fields.word();
      record.long_names.emplace_back(git_name, from_line(fields.rest()));
      return Name::parse(record.long_names.back().second).has_value();
    }
    default:
      return false;
  }
}

}  // namespace

std::string format_folder_record(const Node& directory,
                                 const std::vector<std::pair<std::string, std::string>>& long_names) {
  std::string text;
  text.reserve(64 + directory.children.size() * 64);
  append_attributes('.', directory.attributes, text);
  text += '\n';
  append_xattrs(directory.attributes.xattrs, text);
  std::unordered_map<const Xattrs::List*, std::string_view> first_with;  // the name of an entry
  for (const auto& node : directory.children) {
    if (node->type != NodeType::kFile && node->type != NodeType::kLink) continue;
    append_attributes(node->type == NodeType::kFile ? 'f' : 'l', node->attributes, text);
    text += ' ';
    append_number(node->size, 10, text);
    text.append(node->sparse ? " s " : " - ").append(to_line(node->name)).append("\n");
    const auto& xattrs = node->attributes.xattrs;
    if (!xattrs.are_large() || first_with.try_emplace(&xattrs.list(), node->name).second)
      append_xattrs(xattrs, text);
    else
      text.append("= ").append(to_line(first_with.at(&xattrs.list()))).append("\n");
  }
  for (const auto& [git_name, name] : long_names)
    text.append("d ").append(git_name).append(" ").append(to_line(name)).append("\n");
  return text;
}

Result<FolderRecord> parse_folder_record(std::string_view text) {
  Parsed parsed;
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (end == text.npos || !parse_line(text.substr(0, end), parsed))
      return fail(Code::kCorrupt, "the metadata of a folder in a snapshot is damaged");
    text.remove_prefix(end + 1);
  }
  parsed.end_entry();
  return std::move(parsed.record);
}

}  // namespace okcvm::snapshots
