#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "policy/error.h"
#include "policy/thread_annotations.h"

struct sqlite3;
struct sqlite3_stmt;

namespace okcvm::daemon {

/// One SQLite connection. Not thread-safe: its owner holds a lock.
class Database final {
 public:
  /// Opens or makes the file (mode 0600) in WAL mode. `corrupt` if it is no database or, with `check`,
  /// damaged, or if its `user_version` is above `newest_version`; then it is left exactly as it was found.
  static Result<Database> open(const std::filesystem::path& file, int newest_version, bool check);

  /// A prepared statement being run. Parameters are bound in order of the calls.
  class Statement final {
   public:
    Statement& bind(std::int64_t value);
    Statement& bind(std::string_view text);
    Statement& bind_blob(std::string_view bytes);
    Statement& bind_null();
    template <typename Optional>
    Statement& bind_optional(const Optional& value) {
      return value ? bind(*value) : bind_null();
    }
    /// True while there is a row. `no_space`, `already_exists` (a constraint), `corrupt` or `internal`.
    Result<bool> step();
    /// step() for statements without rows.
    Result<void> run();

    bool is_null(int column) const;
    std::int64_t integer(int column) const;
    std::string text(int column) const;  // of blobs too

   private:
    friend class Database;
    struct Finalizer {
      void operator()(sqlite3_stmt* statement) const;
    };
    explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
    Statement& bound(int result);
    std::unique_ptr<sqlite3_stmt, Finalizer> statement_;
    int bound_ = 0;
    int problem_ = 0;  // of the first value that could not be bound
  };

  Result<Statement> prepare(std::string_view sql);
  /// One or more statements without parameters or rows.
  Result<void> run(const char* sql);
  /// Gives the log its usual size at once, so that commits overwrite what is there. Where a file grows, the
  /// file system has to bring its own records to the disk as well, at each commit, along with what others
  /// write meanwhile: on ext4 that costs several times as much. Zeros behind the last frame are no frame
  /// (sqlite.org/fileformat2.html, 4.1). Without the room it works as well, only slower. Once there is a
  /// schema.
  void make_room_in_log();
  /// Carries out `change` without waiting until its commits are on disk, as all others do. Commits keep
  /// their order, so the next one that waits takes these along. Not within a transaction.
  template <typename Change>
  Result<void> without_sync(Change&& change) NO_THREAD_SAFETY_ANALYSIS {  // its caller holds what it needs
    if (auto set = sync_commits(false); !set) return set;
    Result<void> changed;
    try {
      changed = change();
    } catch (...) {
      static_cast<void>(sync_commits(true));
      throw;
    }
    if (auto set = sync_commits(true); !set) return set;
    return changed;
  }
  /// The number of rows that the last statement changed.
  std::int64_t changes() const;

  /// Rolls back when it is not committed.
  class Transaction final {
   public:
    static Result<Transaction> begin(Database& database);
    Result<void> commit();
    Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
    Transaction& operator=(Transaction&&) = delete;
    ~Transaction();

   private:
    explicit Transaction(Database& database) : database_(&database) {}
    Database* database_;
  };

 private:
  struct Closer {
    void operator()(sqlite3* connection) const;
  };
  explicit Database(sqlite3* connection) : connection_(connection) {}
  /// `alone`: nobody else can look into it meanwhile, and its index needs no room on the disk.
  static Result<Database> open_as(const std::filesystem::path& file, int newest_version, bool check,
                                  bool alone);
  Result<void> sync_commits(bool wanted);
  Result<std::int64_t> pragma(const char* sql);
  std::unique_ptr<sqlite3, Closer> connection_;
};

}  // namespace okcvm::daemon
