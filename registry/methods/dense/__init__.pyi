from .domain_weights import document_shares as document_shares
