#include "tools/daemon/sessions/database.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <utility>

#include "policy/fault.h"
#include "policy/file_descriptor.h"

namespace okcvm::daemon {
namespace {

constexpr int kBusyTimeout = 5000;  // milliseconds
constexpr off_t kLogSize = 1024 * 1024;
// 240 pages of 4 KiB fill the log, which gives back what a large change took beyond that. What is removed is
// not written over: that would take as long as writing it did, and everybody waits for it.
constexpr const char* kSettings =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=OFF;"
    "PRAGMA wal_autocheckpoint=240; PRAGMA journal_size_limit=1048576; PRAGMA secure_delete=FAST;";

/// Why the system refused something. SQLite does not keep that of a file beside the database which cannot be
/// made, so the file system is asked first.
int errno_of(sqlite3* connection) {
  const char* const file = sqlite3_db_filename(connection, "main");
  struct statvfs space {};
  if (file && ::statvfs(file, &space) == 0) {
    if (space.f_flag & ST_RDONLY) return EROFS;
    if (space.f_bavail == 0 || (space.f_files > 0 && space.f_favail == 0)) return ENOSPC;
    // What is left may be too little for another file, as on xfs.
    const auto folder = std::filesystem::path(file).parent_path();
    const FileDescriptor another(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!another && errno == ENOSPC) return ENOSPC;
  }
  return sqlite3_system_errno(connection);
}

/// Where the system refused something, its reason says more than SQLite's.
Error error_of_storage(int system_errno, std::string text) {
  switch (system_errno) {
    case ENOSPC:
      return Error::of(Code::kNoSpace, "the state directory is full, in bytes or in inodes: free some");
    case EROFS:
      text = "registry: the state directory is on a read-only file system; the host's log says why";
      break;
    case EIO:
      text = "registry: the disk of the state directory fails; the host's log says how";
      break;
    default:
      break;
  }
  return Error::of(Code::kInternal, std::move(text));
}

Error error_of(sqlite3* connection, std::string_view what) {
  const int result = sqlite3_errcode(connection);
  const std::string text = "registry: " + std::string(what) + ": " + sqlite3_errmsg(connection);
  switch (result) {
    case SQLITE_FULL:
      return error_of_storage(ENOSPC, text);
    case SQLITE_CONSTRAINT:
      return Error::of(Code::kAlreadyExists, text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Error::of(Code::kCorrupt, text);
    case SQLITE_TOOBIG:
      return Error::of(Code::kQuotaExceeded, text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Error::of(Code::kBusy, text);
    case SQLITE_READONLY:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      return error_of_storage(errno_of(connection), text);
    default:
      return Error::of(Code::kInternal, text);
  }
}

/// SQLite would make the file with the process's umask; the registry is root's alone, also where another
/// program made it.
Result<void> make_private_file(const std::filesystem::path& file) {
  const FileDescriptor descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!descriptor) return fail_errno(errno, "cannot open the registry " + file.string());
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(Code::kCorrupt, "the registry " + file.string() + " is not a regular file");
  if ((status.st_mode & 077) != 0 && ::fchmod(descriptor.get(), 0600) != 0)
    return fail_errno(errno, "cannot close the registry " + file.string() + " to others: use chmod 600");
  return {};
}

/// Whether what was written can be written over though the file system is full. Elsewhere (btrfs) a store to
/// the index of the log, which SQLite maps in order to share it, may end this process (SIGBUS); so it may
/// with blocks of less than 4 KiB, for SQLite has that file grow by a byte in each 4 KiB. Opened exclusively,
/// SQLite keeps the index in its own memory.
bool writes_in_place(const std::filesystem::path& file) {
  struct statfs system {};
  if (::statfs(file.c_str(), &system) != 0) return false;
  constexpr auto kGrowsBy = 4096;
  return system.f_bsize >= kGrowsBy && (system.f_type == EXT4_SUPER_MAGIC ||
                                        system.f_type == XFS_SUPER_MAGIC || system.f_type == TMPFS_MAGIC);
}

Unexpected unusable(const std::filesystem::path& file, const std::string& reason) {
  return fail(Code::kCorrupt,
              "the registry " + file.string() + " " + reason +
                  "; it was left untouched: restore a copy, or move it away to start empty, together with " +
                  file.filename().string() + "-wal and -shm, which are part of it");
}

/// Without its file SQLite would drop a log, with all that is in it alone.
Result<void> check_log_has_its_file(const std::filesystem::path& file) {
  const auto size_of = [](const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_size : 0;
  };
  const std::string log = file.string() + "-wal";
  if (size_of(file) > 0 || size_of(log) == 0) return {};
  return fail(Code::kCorrupt, "the registry " + file.string() + " is gone or empty, but not its part " + log +
                                  ": put the file back, or move that away as well to start empty");
}

}  // namespace

void Database::Closer::operator()(sqlite3* connection) const {
  sqlite3_close_v2(connection);
}
void Database::Statement::Finalizer::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

Result<Database> Database::open(const std::filesystem::path& file, int newest_version, bool check) {
  if (auto checked = check_log_has_its_file(file); !checked) return fail(checked.error());
  if (auto made = make_private_file(file); !made) return fail(made.error());
  const bool alone = !writes_in_place(file);
  auto database = open_as(file, newest_version, check, alone);
  // Shared, the index may find no room; and an exclusive one is not to be had while somebody reads.
  if (database || database.error().code != (alone ? Code::kBusy : Code::kNoSpace)) return database;
  return open_as(file, newest_version, check, !alone);
}

Result<Database> Database::open_as(const std::filesystem::path& file, int newest_version, bool check,
                                   bool alone) {
  sqlite3* connection = nullptr;
  const int opened =
      sqlite3_open_v2(file.c_str(), &connection, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(connection);
  if (opened != SQLITE_OK) return fail(error_of(connection, "cannot open"));
  // SQLite is content with that where the file could not be opened for writing at this moment.
  if (sqlite3_db_readonly(connection, "main") != 0)
    return fail(Code::kInternal,
                "the registry " + file.string() +
                    " cannot be opened for writing: start okcvmd again, and if it stays so, look at the "
                    "file's mode and at its file system");
  sqlite3_extended_result_codes(connection, 0);
  sqlite3_busy_timeout(connection, kBusyTimeout);
  // Until it is known to be ours, closing must not fold a log into the file.
  sqlite3_db_config(connection, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_db_config(connection, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  if (alone)
    if (auto set = database.run("PRAGMA locking_mode=EXCLUSIVE"); !set) return fail(set.error());

  auto version = database.pragma("PRAGMA user_version");
  if (!version) {
    if (version.error().code != Code::kCorrupt) return fail(version.error());
    return unusable(file, "is not a database");
  }
  if (*version < 0 || *version > newest_version)
    return unusable(file, "has version " + std::to_string(*version) + ", newer than this program's " +
                              std::to_string(newest_version) + " (use a newer okcvmd)");
  if (check) {
    auto statement = database.prepare("PRAGMA quick_check(1)");
    auto row = statement ? statement->step() : Result<bool>(fail(statement.error()));
    if (!row || !*row || statement->text(0) != "ok") return unusable(file, "is damaged");
  }
  sqlite3_db_config(connection, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
  if (auto set = database.run(kSettings); !set) return fail(set.error());
  return database;
}

Result<std::int64_t> Database::pragma(const char* sql) {
  auto statement = prepare(sql);
  if (!statement) return fail(statement.error());
  auto row = statement->step();
  if (!row) return fail(row.error());
  return *row ? statement->integer(0) : 0;
}

Result<Database::Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(connection_.get(), sql.data(), static_cast<int>(sql.size()), &statement, nullptr) !=
      SQLITE_OK)
    return fail(error_of(connection_.get(), "cannot prepare"));
  return Statement(statement);
}

Result<void> Database::run(const char* sql) {
  if (sqlite3_exec(connection_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK)
    return fail(error_of(connection_.get(), "cannot run"));
  return {};
}

void Database::make_room_in_log() {
  // Who writes to it just now makes its room himself, and is not to be written over.
  sqlite3_busy_timeout(connection_.get(), 0);
  const auto held = Transaction::begin(*this);
  sqlite3_busy_timeout(connection_.get(), kBusyTimeout);
  if (!held) return;
  const char* file = sqlite3_db_filename(connection_.get(), "main");
  const FileDescriptor log(::open(sqlite3_filename_wal(file), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status {};
  if (!log || ::fstat(log.get(), &status) != 0 || status.st_size >= kLogSize) return;
  const std::string zeros(static_cast<std::size_t>(kLogSize - status.st_size), '\0');
  if (::pwrite(log.get(), zeros.data(), zeros.size(), status.st_size) > 0) ::fsync(log.get());
}

Result<void> Database::sync_commits(bool wanted) {
  return run(wanted ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL");
}

std::int64_t Database::changes() const {
  return sqlite3_changes64(connection_.get());
}

Database::Statement& Database::Statement::bind(std::int64_t value) {
  return bound(sqlite3_bind_int64(statement_.get(), ++bound_, value));
}
Database::Statement& Database::Statement::bind(std::string_view text) {
  return bound(sqlite3_bind_text64(statement_.get(), ++bound_, text.data() ? text.data() : "", text.size(),
                                   SQLITE_TRANSIENT, SQLITE_UTF8));
}
Database::Statement& Database::Statement::bind_blob(std::string_view bytes) {
  return bound(sqlite3_bind_blob64(statement_.get(), ++bound_, bytes.data() ? bytes.data() : "", bytes.size(),
                                   SQLITE_TRANSIENT));
}
Database::Statement& Database::Statement::bind_null() {
  return bound(sqlite3_bind_null(statement_.get(), ++bound_));
}
Database::Statement& Database::Statement::bound(int result) {
  if (problem_ == SQLITE_OK) problem_ = result;
  return *this;
}

Result<bool> Database::Statement::step() {
  if (problem_ != SQLITE_OK)
    return fail(Code::kInternal, std::string("a value cannot be stored: ") + sqlite3_errstr(problem_));
  switch (sqlite3_step(statement_.get())) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      return fail(error_of(sqlite3_db_handle(statement_.get()), "cannot carry out a statement"));
  }
}

Result<void> Database::Statement::run() {
  fault_point("registry.change");
  for (;;) {
    auto row = step();
    if (!row) return fail(row.error());
    if (*row) continue;
    fault_point("registry.changed");
    return {};
  }
}

bool Database::Statement::is_null(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}
std::int64_t Database::Statement::integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}
std::string Database::Statement::text(int column) const {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_.get(), column));
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  return bytes ? std::string(bytes, size) : std::string();
}

Result<Database::Transaction> Database::Transaction::begin(Database& database) {
  if (auto begun = database.run("BEGIN IMMEDIATE"); !begun) return fail(begun.error());
  return Transaction(database);
}
Result<void> Database::Transaction::commit() {
  fault_point("registry.commit");
  if (auto committed = database_->run("COMMIT"); !committed) return committed;
  fault_point("registry.committed");
  database_ = nullptr;
  return {};
}
Database::Transaction::~Transaction() {
  if (database_) static_cast<void>(database_->run("ROLLBACK"));
}

}  // namespace okcvm::daemon
