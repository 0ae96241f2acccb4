// Reading one regular file into a snapshot.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "policy/fault.h"
#include "snapshots/capture.h"
#include "snapshots/io.h"
#include "snapshots/pack_entry.h"
#include "snapshots/replay.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kCannotRead = "a file of the session cannot be read, so no snapshot was taken";
constexpr std::size_t kChunk = 1 << 20;
constexpr std::uint64_t kCheapToRead = 1
                                       << 20;  // a moved file up to this size is read rather than recognised
bool has_holes(const struct stat& status) {
  return status.st_blocks * 512 < status.st_size;
}

}  // namespace

bool Capture::needs_reading(const Node& node, const struct stat& status) const {
  if (node.type != NodeType::kFile || node.content.is_none()) return true;
  if (node.marks & kMarkContent) return true;
  if (trust_.by_stat && trust_.index && node.known) {
    if (!trust_.index->is_of_this_boot()) return true;
    const auto stamp = trust_.index->file(known_path(node));
    return !stamp || *stamp != stamp_of(status);
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size != node.size) return true;
  if (!(node.marks & kMarkEntry)) return false;
  // Moved here, says the change set. It may have been refused; what can be read in no time is read.
  if (node.origin.empty() || size <= kCheapToRead || !trust_.index || !trust_.recognizes) return true;
  const auto stamp = trust_.index->file(known_path(node));
  return !stamp || stamp->inode != status.st_ino || stamp->size != size ||
         stamp->modified_ns != stamp_of(status).modified_ns;
}

Result<void> Capture::regular(Node& node, int parent, const struct stat& before, const std::string& path) {
  const FileDescriptor fd(::openat(parent, node.name.c_str(),
                                   O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    if (is_gone(errno)) return remove(node);
    return fail_errno(errno, kCannotRead, path);
  }
  if (const int injected = fault_error("capture.read")) return fail_errno(injected, kCannotRead, path);
  if (!S_ISREG(status.st_mode) || status.st_ino != before.st_ino) {
    // Replaced between two calls. It is recorded again for the next snapshot; this one holds what was found.
    note_in_flight(path);
    if (!S_ISREG(status.st_mode)) return remove(node);
  }
  // Whoever can write to the file may store without a trace: before a full comparison, which may come after a
  // time of which nothing is known, or through a mapping that ends while the bytes are read.
  const bool is_due = needs_reading(node, status);
  bool is_mapped = (is_due || trust_.by_stat) && has_writers(fd.get()).value_or(true);
  const bool reads = is_due || is_mapped;
  leave_origin(node);
  if (auto made = tree_.become(node, NodeType::kFile); !made) return made;
  auto taken = reads ? take_from_model(node, status) : Result<bool>(true);
  if (!taken) return fail(taken.error());
  std::optional<FileStamp> settled;
  if (!*taken) {
    auto size = static_cast<std::uint64_t>(status.st_size);
    const auto planned = size;
    auto read = size < Batch::kStreamFrom ? read_small(node, fd.get(), size, path)
                                          : read_large(node, fd.get(), status, size, path);
    if (!read) return read;
    found_.bytes += size;
    set_size(node, size);
    struct stat after {};
    if (::fstat(fd.get(), &after) != 0) return fail_errno(errno, kCannotRead, path);
    const bool is_still = stamp_of(after) == stamp_of(status) && size == planned;
    if (!is_still) note_in_flight(path);
    is_mapped = is_mapped || has_writers(fd.get()).value_or(true);
    if (is_mapped) note_mapped(path);
    if (is_still && !is_mapped) settled = stamp_of(status);
  }
  if (node.sparse != has_holes(status)) node.touch();
  node.sparse = has_holes(status);
  node.marks = 0;
  if (trust_.index && is_mapped)
    trust_.index->removed(path);  // stores to a page that was written to already leave no trace in its times
  else if (trust_.index)
    trust_.index->saw_file(path, stamp_of(status), trust_.cut_after_ns);
  if (status.st_nlink > 1) {
    auto& inode = linked_[status.st_ino];
    if (inode.paths.empty()) inode.read = settled;
    inode.paths.push_back(path);
    inode.links = status.st_nlink;
  } else if (tree_.links().find(path)) {
    alone_.push_back(path);
  }
  auto attributes = attributes_of(fd.get(), status);
  if (!attributes) return fail_errno(attributes.error().errno_value, kCannotRead, path);
  return set_attributes(node, std::move(*attributes));
}

Result<bool> Capture::take_from_model(Node& node, const struct stat& status) {
  const auto inode = linked_.find(status.st_ino);
  if (status.st_nlink < 2 || inode == linked_.end() || inode->second.read != stamp_of(status)) return false;
  const auto path = RelPath::parse(inode->second.paths.front());
  auto model = path ? tree_.find(*path) : Result<Node*>(nullptr);
  if (!model) return fail(model.error());
  if (!*model || (*model)->type != NodeType::kFile || (*model)->content.is_none()) return false;
  if (node.content != (*model)->content) node.touch();
  node.content = (*model)->content;
  set_size(node, (*model)->size);
  return true;
}

Result<void> Capture::read_small(Node& node, int fd, std::uint64_t& size, const std::string& path) {
  std::string bytes(size, '\0');  // growth meanwhile shows in its time stamps
  auto got = read_at(fd, bytes.data(), bytes.size(), 0);
  if (!got) return fail_errno(got.error().errno_value, kCannotRead, path);
  bytes.resize(*got);
  size = bytes.size();
  auto oid = batch_.add(ObjectKind::kBlob, std::move(bytes));
  if (!oid) return fail(oid.error());
  if (node.content != *oid) node.touch();
  node.content = *oid;
  return {};
}

/// Who has a file open for writing need not have written to it: where it looks as it did, its name is found
/// first, which needs no room and writes nothing.
Result<void> Capture::read_large(Node& node, int fd, const struct stat& status, std::uint64_t size,
                                 const std::string& path) {
  std::string chunk(kChunk, '\0');
  const bool looks_the_same = node.size == size && node.attributes.modified.tv_sec == status.st_mtim.tv_sec &&
                              node.attributes.modified.tv_nsec == status.st_mtim.tv_nsec;
  if (looks_the_same && !node.content.is_none() && batch_.holds(node.content)) {
    auto stream = BlobStream::hash_only(size);
    if (!stream) return fail(stream.error());
    if (auto poured = pour(fd, status, size, path, chunk, *stream); !poured) return poured;
    const auto oid = stream->finish();
    if (!oid) return fail(oid.error());
    if (*oid == node.content) return {};
  }
  auto sample = read_at(fd, chunk.data(), kSampleSize, size / 2);
  if (!sample) return fail_errno(sample.error().errno_value, kCannotRead, path);
  auto stream = batch_.open_blob(size, looks_compressible({chunk.data(), *sample}));
  if (!stream) return fail(stream.error());
  if (auto poured = pour(fd, status, size, path, chunk, *stream); !poured) return poured;
  auto oid = batch_.close_blob(std::move(*stream));
  if (!oid) return fail(oid.error());
  if (node.content != *oid) node.touch();
  node.content = *oid;
  return {};
}

/// In pieces, skipping over holes. The size was promised to git: a file that shrinks meanwhile is filled up
/// with zeros, and comes again as it was written to.
Result<void> Capture::pour(int fd, const struct stat& status, std::uint64_t size, const std::string& path,
                           std::string& chunk, BlobStream& stream) {
  const std::string zeros(kChunk, '\0');
  const bool skips = has_holes(status);
  std::uint64_t data_from = 0, data_to = skips ? 0 : size;
  for (std::uint64_t at = 0; at < size;) {
    if (skips && at >= data_to) {
      const off_t from = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
      const off_t to = from < 0 ? -1 : ::lseek(fd, from, SEEK_HOLE);
      if (from < 0 && errno != ENXIO) return fail_errno(errno, kCannotRead, path);
      data_from = from < 0 ? size : std::min(size, static_cast<std::uint64_t>(from));
      data_to = to < 0 ? size : std::min(size, static_cast<std::uint64_t>(to));
    }
    std::string_view piece;
    if (at < data_from) {
      piece = std::string_view(zeros).substr(0, std::min<std::uint64_t>(kChunk, data_from - at));
    } else {
      const std::size_t wanted = std::min<std::uint64_t>(kChunk, data_to - at);
      auto got = read_at(fd, chunk.data(), wanted, at);
      if (!got) return fail_errno(got.error().errno_value, kCannotRead, path);
      if (*got < wanted) {
        std::fill(chunk.begin() + static_cast<std::ptrdiff_t>(*got), chunk.end(), '\0');
        note_in_flight(path);
      }
      piece = std::string_view(chunk).substr(0, wanted);
    }
    if (auto written = stream.write(piece); !written) return written;
    at += piece.size();
    if (progress_ && !progress_("reading", found_.entries, 0)) return stopped();
  }
  return {};
}

void Capture::note_mapped(const std::string& path) {
  note_in_flight(path);
  if (auto parsed = RelPath::parse(path)) found_.still_mapped.push_back(std::move(*parsed));
}

void Capture::note_in_flight(const std::string& path) {
  if (auto parsed = RelPath::parse(path)) found_.in_flight.push_back(std::move(*parsed));
}

}  // namespace okcvm::snapshots
