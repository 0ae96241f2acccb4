#include "snapshots/commit.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "policy/words.h"
#include "snapshots/git_tree.h"
#include "snapshots/names.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kAuthor = "okcvm <okcvm@localhost>";
constexpr std::string_view kSummaryHead = "okcvm-snapshot 1\n";

Error damaged(const Oid& oid) {
  return Error::of(Code::kCorrupt,
                   "snapshot " + oid.hex() + " is damaged; `okcvm verify` lists what is lost");
}

/// What `git log` shows. Git wants no NUL byte in it and a first line; the exact label is in the summary.
std::string message_of(const Commit& commit) {
  std::string message = commit.label;
  std::replace(message.begin(), message.end(), '\0', ' ');
  message.erase(0, std::min(message.find_first_not_of(" \t\r\n"), message.size()));
  if (message.empty()) {
    std::tm utc{};
    const std::time_t seconds = commit.created_at.tv_sec;
    ::gmtime_r(&seconds, &utc);
    std::array<char, 64> text{};
    std::strftime(text.data(), text.size(), "Snapshot of %Y-%m-%dT%H:%M:%SZ", &utc);
    message = text.data();
  }
  if (message.back() != '\n') message += '\n';
  return message;
}

std::string summary_of(const Commit& commit) {
  std::array<char, 32> nanoseconds{};
  std::snprintf(nanoseconds.data(), nanoseconds.size(), ".%09ld", commit.created_at.tv_nsec);
  const SnapshotStats& stats = commit.stats;
  std::string text(kSummaryHead);
  text.append("created ").append(std::to_string(commit.created_at.tv_sec)).append(nanoseconds.data());
  text.append("\nfiles ").append(std::to_string(stats.files));
  text.append("\ndirectories ").append(std::to_string(stats.directories));
  text.append("\nbytes ").append(std::to_string(stats.bytes));
  text.append("\nchanged ").append(std::to_string(stats.changed));
  text.append("\nread ").append(std::to_string(stats.bytes_read));
  text.append("\nrescanned ").append(stats.rescanned ? "1" : "0");
  for (const auto& path : commit.in_flight) text.append("\nin-flight ").append(to_line(path.text()));
  text.append("\nlabel\n").append(commit.label);  // to the end, as it is
  return text;
}

bool parse_number(std::string_view text, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_time(std::string_view text, timespec& time) {
  const auto dot = text.find('.');
  std::int64_t seconds = 0;
  std::uint64_t nanoseconds = 0;
  if (dot == text.npos || std::from_chars(text.data(), text.data() + dot, seconds).ec != std::errc() ||
      !parse_number(text.substr(dot + 1), nanoseconds))
    return false;
  time = {seconds, static_cast<long>(nanoseconds)};
  return true;
}

bool parse_summary(std::string_view text, Commit& commit) {
  if (!text.starts_with(kSummaryHead)) return false;
  SnapshotStats& stats = commit.stats;
  std::uint64_t rescanned = 0;
  struct Row {
    std::string_view key;
    std::uint64_t* value;
  };
  const std::array<Row, 6> rows{Row{"files", &stats.files},     Row{"directories", &stats.directories},
                                Row{"bytes", &stats.bytes},     Row{"changed", &stats.changed},
                                Row{"read", &stats.bytes_read}, Row{"rescanned", &rescanned}};
  while (true) {
    const auto end = text.find('\n');
    if (end == text.npos) return false;
    auto value = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (value == "label") break;
    const auto key = take_word(value);
    for (const auto& row : rows)
      if (row.key == key && !parse_number(value, *row.value)) return false;
    if (key == "created" && !parse_time(value, commit.created_at)) return false;
    if (key == "in-flight")
      if (auto path = RelPath::parse(from_line(value))) commit.in_flight.push_back(std::move(*path));
  }
  stats.rescanned = rescanned != 0;
  commit.label = text;
  return true;
}

/// "key value" lines up to the empty one.
std::optional<Oid> header_oid(std::string_view bytes, std::string_view key) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    if (end == bytes.npos || end == 0) return std::nullopt;
    const auto line = bytes.substr(0, end);
    if (line.starts_with(key)) return Oid::parse(line.substr(key.size()));
    bytes.remove_prefix(end + 1);
  }
  return std::nullopt;
}

Oid entry_named(const std::vector<GitEntry>& entries, std::string_view name) {
  for (const auto& entry : entries)
    if (entry.name == name) return entry.oid;
  return {};
}

Result<std::vector<GitEntry>> read_entries(const Repository& repository, const Oid& oid) {
  auto bytes = repository.read(oid, ObjectKind::kTree);
  if (!bytes) return fail(bytes.error());
  return parse_git_tree(*bytes);
}

}  // namespace

Totals totals_of(const Commit& commit) {
  return {commit.stats.files, commit.stats.directories, commit.stats.bytes};
}

Result<Oid> write_commit(Batch& batch, const Commit& commit) {
  auto summary = batch.add(ObjectKind::kBlob, summary_of(commit));
  if (!summary) return summary;
  std::vector<GitEntry> metadata{{kGitFile, "summary", *summary}, {kGitDirectory, "tree", commit.names.meta}};
  if (!commit.names.links.is_none()) metadata.push_back({kGitFile, "links", commit.names.links});
  if (!commit.names.left_out.is_none()) metadata.push_back({kGitFile, "left-out", commit.names.left_out});
  auto metadata_tree = batch.add(ObjectKind::kTree, format_git_tree(metadata));
  if (!metadata_tree) return metadata_tree;
  std::vector<GitEntry> top{{kGitDirectory, "metadata", *metadata_tree}};
  if (!commit.names.workspace.is_none()) top.push_back({kGitDirectory, "workspace", commit.names.workspace});
  auto tree = batch.add(ObjectKind::kTree, format_git_tree(top));
  if (!tree) return tree;

  const std::string who = std::string(kAuthor) + " " + std::to_string(commit.created_at.tv_sec) + " +0000\n";
  std::string bytes = "tree " + tree->hex() + "\n";
  if (commit.parent) bytes += "parent " + commit.parent->hex() + "\n";
  bytes += "author " + who + "committer " + who + "\n" + message_of(commit);
  return batch.add(ObjectKind::kCommit, std::move(bytes));
}

Result<std::optional<Oid>> read_parent(const Repository& repository, const Oid& oid) {
  auto bytes = repository.read(oid, ObjectKind::kCommit);
  if (!bytes) return fail(bytes.error());
  return header_oid(*bytes, "parent ");
}

Result<Commit> read_commit(const Repository& repository, const Oid& oid) {
  auto bytes = repository.read(oid, ObjectKind::kCommit);
  if (!bytes) return fail(bytes.error());
  Commit commit;
  commit.oid = oid;
  commit.parent = header_oid(*bytes, "parent ");
  const auto tree = header_oid(*bytes, "tree ");
  if (!tree) return fail(damaged(oid));
  auto top = read_entries(repository, *tree);
  if (!top) return fail(top.error());
  auto metadata = read_entries(repository, entry_named(*top, "metadata"));
  if (!metadata) return fail(metadata.error());
  commit.names = {entry_named(*top, "workspace"), entry_named(*metadata, "tree"),
                  entry_named(*metadata, "links"), entry_named(*metadata, "left-out")};
  auto summary = repository.read(entry_named(*metadata, "summary"), ObjectKind::kBlob);
  if (!summary) return fail(summary.error());
  if (commit.names.meta.is_none() || !parse_summary(*summary, commit)) return fail(damaged(oid));
  return commit;
}

Result<Snapshot> to_snapshot(const Repository& repository, const Commit& commit) {
  Snapshot snapshot{StoreAccess::id(commit.oid),
                    commit.label,
                    commit.created_at,
                    std::nullopt,
                    commit.stats,
                    commit.in_flight,
                    {},
                    {}};
  if (commit.parent) snapshot.parent = StoreAccess::id(*commit.parent);
  if (commit.names.left_out.is_none()) return snapshot;
  auto text = repository.read(commit.names.left_out, ObjectKind::kBlob);
  if (!text) return fail(text.error());
  auto table = PathTable::parse(*text);
  if (!table) return fail(table.error());
  for (const auto& entry : table->numbers())
    if (auto path = RelPath::parse(entry.first)) snapshot.left_out.push_back(std::move(*path));
  return snapshot;
}

}  // namespace okcvm::snapshots
