#include "tools/daemon/sessions/session_metadata.h"

#include <nlohmann/json.hpp>

#include "policy/iso_time.h"

namespace okcvm::daemon {

std::string metadata_file_of(const SessionRecord& record) {
  using nlohmann::ordered_json;
  ordered_json metadata;
  metadata["session_id"] = record.id.text();
  metadata["created_at"] = time_text(record.created_at);
  metadata["owner"] = {{"uid", record.owner_uid}, {"gid", record.owner_gid}};
  metadata["skills"] = record.skills;
  metadata["labels"] = record.labels;
  return metadata.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace okcvm::daemon
