# Reads the synthetic table of this folder in R, with the types of its codebook: base R and the package jsonlite.
#
#   source("read.R")
#   table <- read_pack()            # or read_pack("path/to/this/folder")
#   codebook(table)

read_pack <- function(folder = ".") {
  book <- jsonlite::fromJSON(file.path(folder, "data", "codebook.json"), simplifyVector = FALSE)
  cells <- utils::read.csv(
    file.path(folder, "data", "synthetic.csv"),
    colClasses = "character", na.strings = "", check.names = FALSE, encoding = "UTF-8"
  )
  if (ncol(cells) != length(book$columns) || nrow(cells) != book$rows) {
    stop("data/synthetic.csv does not fit data/codebook.json; run `fedsynth verify` on this folder")
  }
  for (at in seq_along(book$columns)) {
    cells[[at]] <- typed(cells[[at]], book$columns[[at]])
  }
  names(cells) <- vapply(book$columns, function(column) column$name, "")
  attr(cells, "codebook") <- book$columns
  cells
}

typed <- function(cells, column) {
  if (column$kind == "categorical") {
    values <- vapply(column$values, as.character, "")
    # In the CSV file an apostrophe precedes text that a spreadsheet would take for a formula.
    written <- if (is.null(column$cells)) values else vapply(column$cells, as.character, "")
    return(factor(values[match(cells, written)], levels = values, ordered = isTRUE(column$ordered)))
  }
  if (column$kind == "boolean") {
    return(cells == "True")
  }
  if (column$kind == "numeric") {
    return(as.numeric(cells))
  }
  if (column$kind == "datetime") {
    return(moments(cells))
  }
  cells
}

moments <- function(cells) {
  text <- sub("([+-][0-9]{2}):([0-9]{2})$", "\\1\\2", sub("T", " ", sub("Z$", "+0000", cells)))
  found <- as.POSIXct(text, tz = "UTC", format = "%Y-%m-%d %H:%M:%OS%z")
  for (form in c("%Y-%m-%d %H:%M:%OS", "%Y-%m-%d")) {
    left <- is.na(found)
    found[left] <- as.POSIXct(text[left], tz = "UTC", format = form)
  }
  found
}

codebook <- function(table) {
  rows <- lapply(attr(table, "codebook"), function(column) {
    range <- if (is.null(column$low)) paste(unlist(column$values), collapse = ", ") else paste(column$low, "to", column$high)
    data.frame(column = column$name, kind = column$kind, values = range, missing = column$missing)
  })
  do.call(rbind, rows)
}
