#pragma once

#include "policy/error.h"

namespace okcvm::daemon {

class Database;

/// The newest schema that this program knows; `user_version` of the file says which one it has.
int newest_schema();
/// Brings a database of any older version, the seeds' included, to the newest, in one transaction.
/// One that is that already is only read.
Result<void> migrate(Database& database);

}  // namespace okcvm::daemon
