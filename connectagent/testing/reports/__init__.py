"""Reports: a failure in one small file, with which somebody else sees it again, offline."""
