#include "snapshots/blob_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "policy/fault.h"
#include "policy/file_descriptor.h"
#include "snapshots/git.h"
#include "snapshots/io.h"
#include "snapshots/pack_entry.h"

namespace okcvm::snapshots {
namespace {

constexpr const char* kWhat = "an object cannot be written";

// A backend that keeps nothing: libgit2 then computes the name of what is streamed, and that is all.

int discard(git_odb_stream* /*stream*/, const char* /*bytes*/, std::size_t /*size*/) {
  return 0;
}

int accept_name(git_odb_stream* /*stream*/, const git_oid* /*oid*/) {
  return 0;
}

void free_stream(git_odb_stream* stream) {
  delete stream;
}

int open_stream(git_odb_stream** out, git_odb_backend* backend, git_object_size_t /*size*/,
                git_object_t /*type*/) {
  auto* stream = new (std::nothrow) git_odb_stream{};
  if (!stream) return GIT_ERROR;
  stream->backend = backend;
  stream->mode = GIT_STREAM_WRONLY;
  stream->write = discard;
  stream->finalize_write = accept_name;
  stream->free = free_stream;
  *out = stream;
  return 0;
}

void free_backend(git_odb_backend* backend) {
  delete backend;
}

git_odb_backend* discarding_backend() {
  auto* backend = new (std::nothrow) git_odb_backend{};
  if (!backend) return nullptr;
  backend->version = GIT_ODB_BACKEND_VERSION;
  backend->writestream = open_stream;
  backend->free = free_backend;
  return backend;
}

/// A zlib stream into a new file.
class LooseFile final {
 public:
  explicit LooseFile(int level) { ready_ = deflateInit(&stream_, level) == Z_OK; }
  ~LooseFile() { deflateEnd(&stream_); }
  LooseFile(const LooseFile&) = delete;
  LooseFile& operator=(const LooseFile&) = delete;

  Result<void> open(int folder, const std::string& name) {
    fault_point("blob.open");
    if (const int injected = fault_error("blob.open")) return fail_errno(injected, kWhat);
    if (!ready_) return fail_errno(ENOMEM, kWhat);
    file_ = FileDescriptor(
        ::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0400));
    if (!file_) return fail_errno(errno, kWhat);
    return {};
  }

  Result<void> add(std::string_view bytes) { return deflated(bytes, Z_NO_FLUSH); }

  Result<void> close() {
    if (auto ended = deflated({}, Z_FINISH); !ended) return ended;
    fault_point("blob.fsync");
    if (::fsync(file_.get()) != 0) return fail_errno(errno, kWhat);
    return {};
  }

 private:
  Result<void> deflated(std::string_view bytes, int flush) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    while (true) {
      stream_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
      stream_.avail_out = static_cast<uInt>(buffer_.size());
      const int status = deflate(&stream_, flush);
      if (status == Z_STREAM_ERROR) return fail_errno(EIO, kWhat);
      const std::size_t made = buffer_.size() - stream_.avail_out;
      if (made > 0) {
        fault_point("blob.write");
        if (const int injected = fault_error("blob.write")) return fail_errno(injected, kWhat);
        if (auto written = write_all(file_.get(), {buffer_.data(), made}, kWhat); !written) return written;
      }
      if (status == Z_STREAM_END || (flush != Z_FINISH && stream_.avail_out > 0)) return {};
    }
  }

  z_stream stream_{};
  bool ready_ = false;
  FileDescriptor file_;
  std::string buffer_ = std::string(1 << 20, '\0');
};

}  // namespace

/// Finds the name of what is streamed; a hash of libgit2's, which notices attempts at a collision.
struct BlobStream::State {
  git::OdbHandle odb;
  git::StreamHandle stream;
  std::unique_ptr<LooseFile> file;  // of a stream that stores

  static Result<std::unique_ptr<State>> open(std::uint64_t size) {
    git::start();
    auto state = std::make_unique<State>();
    git_odb_backend* backend = discarding_backend();
    git_odb* odb = nullptr;
    if (!backend || git_odb_new(&odb) != 0) {
      delete backend;
      return fail_errno(ENOMEM, kWhat);
    }
    state->odb.reset(odb);
    if (git_odb_add_backend(odb, backend, 1) != 0) {
      delete backend;
      return fail_errno(ENOMEM, kWhat);
    }
    git_odb_stream* stream = nullptr;
    if (git_odb_open_wstream(&stream, odb, size, GIT_OBJECT_BLOB) != 0)
      return fail(git::last_error(Code::kInternal, kWhat));
    state->stream.reset(stream);
    return state;
  }
};

BlobStream::BlobStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
BlobStream::BlobStream(BlobStream&&) noexcept = default;
BlobStream::~BlobStream() = default;

Result<BlobStream> BlobStream::hash_only(std::uint64_t size) {
  auto state = State::open(size);
  if (!state) return fail(state.error());
  return BlobStream(std::move(*state));
}

Result<BlobStream> BlobStream::store(int folder, const std::string& name, std::uint64_t size, bool compress) {
  auto state = State::open(size);
  if (!state) return fail(state.error());
  (*state)->file = std::make_unique<LooseFile>(compress ? kCompressionLevel : 0);
  if (auto opened = (*state)->file->open(folder, name); !opened) return fail(opened.error());
  const std::string header = "blob " + std::to_string(size);
  if (auto begun = (*state)->file->add({header.c_str(), header.size() + 1}); !begun)
    return fail(begun.error());
  return BlobStream(std::move(*state));
}

Result<void> BlobStream::write(std::string_view piece) {
  if (git_odb_stream_write(state_->stream.get(), piece.data(), piece.size()) != 0)
    return fail(git::last_error(Code::kInternal, kWhat));
  return state_->file ? state_->file->add(piece) : Result<void>();
}

Result<Oid> BlobStream::finish() {
  git_oid oid{};
  if (git_odb_stream_finalize_write(&oid, state_->stream.get()) != 0)
    return fail(git::last_error(Code::kInternal, kWhat));
  if (state_->file)
    if (auto closed = state_->file->close(); !closed) return fail(closed.error());
  return git::from_native(oid);
}

}  // namespace okcvm::snapshots
