#include "fusefs/access_order.h"

#include <algorithm>

namespace okcvm::fusefs {

AccessOrder::Read::Read(AccessOrder& order, NodeId node, std::uint64_t unique)
    : order_(order), node_(node), unique_(unique) {
  MutexLock lock(order.mutex_);
  is_late_ = std::any_of(order.set_.begin(), order.set_.end(),
                         [&](const Access& set) { return set.node == node && set.unique > unique; });
  order.reads_.push_back({node, unique});
}

AccessOrder::Read::~Read() {
  {
    MutexLock lock(order_.mutex_);
    order_.reads_.erase(std::find(order_.reads_.begin(), order_.reads_.end(), Access{node_, unique_}));
  }
  order_.read_ended_.notify_all();
}

void AccessOrder::before_setting(NodeId node, std::uint64_t unique) {
  MutexLock lock(mutex_);
  set_[next_set_++ % set_.size()] = {node, unique};
  while (std::any_of(reads_.begin(), reads_.end(),
                     [&](const Access& read) { return read.node == node && read.unique < unique; }))
    read_ended_.wait(mutex_);
}

}  // namespace okcvm::fusefs
