module github.com/rconn/rdma

go 1.26
