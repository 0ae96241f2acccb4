#include "snapshots/stat_index.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "policy/words.h"
#include "snapshots/checksum.h"
#include "snapshots/io.h"
#include "snapshots/names.h"
#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

// Lines of a log:
//   + PATH NUMBERS    what is known of a path
//   - PATH            it is gone, with all below it
//   > FROM TO         it was renamed
//   = COMMIT CRC BOOT ends what one snapshot saw; CRC is over the lines since the last "="
//   # SIZE            the first line of a log that was written anew: its size then

// A log above both is written anew: it has grown by as much as it held.
constexpr std::uint64_t kSmallLog = 1 << 20;
constexpr std::uint64_t kGrowth = 2;
// All of it is held in memory, by the one daemon of all.
constexpr std::uint64_t kLargestLog = 512 << 20;

// Time stamps of a file system move in steps of up to a tick of the kernel (CONFIG_HZ=100: 10 ms); twice
// that.
constexpr std::int64_t kTickNs = 20'000'000;

std::int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

/// The kernel's name for the time since the host started (random(4)); empty where it cannot be told.
const std::string& this_boot() {
  static const std::string id = [] {
    std::array<char, 36> text{};  // a UUID
    const FileDescriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    const auto got = file ? read_at(file.get(), text.data(), text.size(), 0) : Result<std::size_t>(0);
    return std::string(text.data(), got.value_or(0));
  }();
  return id;
}

std::int64_t take_number(std::string_view& line) {
  std::int64_t value = 0;
  const auto word = take_word(line);
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

void append_row(std::string_view path, std::initializer_list<std::int64_t> numbers, std::string& out) {
  out.append("+ ").append(to_line(path));
  for (const auto number : numbers) out.append(" ").append(std::to_string(number));
  out += '\n';
}

void read_row(std::string_view line, Identity& row) {
  row.inode = static_cast<std::uint64_t>(take_number(line));
  row.born_ns = take_number(line);
}

void read_row(std::string_view line, FileStamp& row) {
  row.inode = static_cast<std::uint64_t>(take_number(line));
  row.size = static_cast<std::uint64_t>(take_number(line));
  row.modified_ns = take_number(line);
  row.changed_ns = take_number(line);
}

void append_row(std::string_view path, const Identity& row, std::string& out) {
  append_row(path, {static_cast<std::int64_t>(row.inode), row.born_ns}, out);
}

void append_row(std::string_view path, const FileStamp& row, std::string& out) {
  append_row(path,
             {static_cast<std::int64_t>(row.inode), static_cast<std::int64_t>(row.size), row.modified_ns,
              row.changed_ns},
             out);
}

template <typename Row>
using Rows = std::map<std::string, Row, std::less<>>;

template <typename Row>
void remove_tree(Rows<Row>& rows, const std::string& path) {
  rows.erase(path);
  const auto [first, last] = range_below(rows, path);
  rows.erase(first, last);
}

template <typename Row>
void move_tree(Rows<Row>& rows, const std::string& from, const std::string& to) {
  Rows<Row> moved;
  const auto take = [&](const std::string& path) {
    auto entry = rows.extract(path);
    if (!entry) return;
    entry.key() = to + path.substr(from.size());
    moved.insert(std::move(entry));
  };
  std::vector<std::string> paths{from};
  for (auto [at, last] = range_below(rows, from); at != last; ++at) paths.push_back(at->first);
  for (const auto& path : paths) take(path);
  remove_tree(rows, to);
  rows.merge(moved);
}

template <typename Row>
void apply(std::string_view line, Rows<Row>& rows) {
  const auto what = take_word(line);
  const std::string path = from_line(take_word(line));
  if (what == "+") read_row(line, rows[path]);
  if (what == "-") remove_tree(rows, path);
  if (what == ">") move_tree(rows, path, from_line(take_word(line)));
}

std::string header_of(std::uint64_t size) {
  return "# " + std::to_string(size) + "\n";
}

/// What a log is when it has just been written anew; 0 for one that never was.
std::uint64_t size_when_new(int log) {
  std::array<char, 24> bytes{};
  const auto got = read_at(log, bytes.data(), bytes.size(), 0);
  std::string_view line(bytes.data(), got.value_or(0));
  line = line.substr(0, line.find('\n'));
  return take_word(line) == "#" ? static_cast<std::uint64_t>(take_number(line)) : 0;
}

bool has_outgrown_itself(int log) {
  struct stat status {};
  if (::fstat(log, &status) != 0) return false;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  return size > kSmallLog && size > kGrowth * size_when_new(log);
}

std::string end_of(std::string_view text, const Oid& snapshot) {
  return "= " + snapshot.hex() + " " + crc_of(text) + " " + this_boot() + "\n";
}

}  // namespace

FileStamp stamp_of(const struct stat& status) {
  return {status.st_ino, static_cast<std::uint64_t>(status.st_size), nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

template <typename Row>
void StatIndex::load(Log<Row>& log) {
  if (log.loaded_for == base_) return;
  log.rows.clear();
  log.boot.clear();
  log.loaded_for = base_;
  struct stat status {};
  if (::fstatat(folder_, log.file_name, &status, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (static_cast<std::uint64_t>(status.st_size) > kLargestLog) return;
  const auto text = read_file(folder_, log.file_name);
  if (!text) return;
  bool reached = false;
  std::size_t batch = 0;
  for (std::size_t start = 0; start < text->size() && !reached;) {
    const auto end = text->find('\n', start);
    if (end == text->npos) break;
    std::string_view line = std::string_view(*text).substr(start, end - start);
    if (line.starts_with("= ")) {
      line.remove_prefix(2);
      const auto commit = Oid::parse(take_word(line));
      if (!commit || take_word(line) != crc_of(std::string_view(*text).substr(batch, start - batch))) break;
      for (std::size_t at = batch; at < start;) {
        const auto row_end = text->find('\n', at);
        apply(std::string_view(*text).substr(at, row_end - at), log.rows);
        at = row_end + 1;
      }
      batch = end + 1;
      log.boot = line;
      reached = *commit == base_;
    }
    start = end + 1;
  }
  if (!reached) log.rows.clear();
}

std::optional<Identity> StatIndex::folder(std::string_view path) {
  load(folders_);
  const auto at = folders_.rows.find(path);
  return at == folders_.rows.end() ? std::nullopt : std::optional(at->second);
}

std::size_t StatIndex::longest_folder_below(const std::string& path) {
  load(folders_);
  std::size_t longest = path.size();
  for (auto [at, last] = range_below(folders_.rows, path); at != last; ++at)
    longest = std::max(longest, at->first.size());
  return longest;
}

std::optional<FileStamp> StatIndex::file(std::string_view path) {
  load(files_);
  const auto at = files_.rows.find(path);
  return at == files_.rows.end() ? std::nullopt : std::optional(at->second);
}

bool StatIndex::is_of_this_boot() {
  load(files_);
  return !this_boot().empty() && files_.boot == this_boot();
}

void StatIndex::saw_folder(std::string_view path, const Identity& identity) {
  append_row(path, identity, folders_.pending);
}

void StatIndex::saw_file(std::string_view path, FileStamp stamp, std::int64_t known_at_ns) {
  if (stamp.changed_ns + kTickNs > known_at_ns) stamp.changed_ns = FileStamp::kUntold;
  append_row(path, stamp, files_.pending);
}

void StatIndex::moved(std::string_view from, std::string_view to) {
  const std::string line = "> " + to_line(from) + " " + to_line(to) + "\n";
  folders_.moves += line;
  files_.moves += line;
}

void StatIndex::removed(std::string_view path) {
  const std::string line = "- " + to_line(path) + "\n";
  folders_.pending += line;
  files_.pending += line;
}

// What does not get written here only makes a later snapshot slower, so errors are not reported.

template <typename Row>
void StatIndex::append(Log<Row>& log, Seen seen) {
  std::string text = std::move(log.moves) + log.pending;
  log.moves.clear();
  log.pending.clear();
  if (seen == Seen::kAll) return write_anew(log, std::move(text));
  text += end_of(text, base_);
  const FileDescriptor file(::openat(folder_, log.file_name, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return;
  if (!write_all(file.get(), text, "index"))
    ::unlinkat(folder_, log.file_name, 0);
  else if (has_outgrown_itself(file.get()))
    compact(log);
}

template <typename Row>
void StatIndex::write_anew(Log<Row>& log, std::string text) {
  text.insert(0, header_of(text.size()));
  text += end_of(text, base_);
  if (!replace_file(folder_, log.file_name, text, Durability::kLater)) ::unlinkat(folder_, log.file_name, 0);
}

/// Leaves of a log what it says of the base.
template <typename Row>
void StatIndex::compact(Log<Row>& log) {
  load(log);
  std::string text;
  for (const auto& [path, row] : log.rows) append_row(path, row, text);
  if (text.empty())
    ::unlinkat(folder_, log.file_name, 0);
  else
    write_anew(log, std::move(text));
}

void StatIndex::commit(const Oid& snapshot, Seen seen) {
  base_ = snapshot;
  // What the rows in memory said of the base before no longer holds.
  forget_rows();
  append(folders_, seen);
  append(files_, seen);
  forget_rows();
}

void StatIndex::forget_rows() {
  folders_.rows.clear();
  files_.rows.clear();
  folders_.loaded_for = files_.loaded_for = Oid{};
}

void StatIndex::drop() {
  for (auto* text : {&folders_.moves, &folders_.pending, &files_.moves, &files_.pending}) text->clear();
}

}  // namespace okcvm::snapshots
