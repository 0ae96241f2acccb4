add_executable(snapshot_bench ${CMAKE_CURRENT_LIST_DIR}/snapshot_bench.cpp)
target_link_libraries(snapshot_bench PRIVATE okcvm_snapshots)
